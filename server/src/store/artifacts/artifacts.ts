import { type ByteQuota, type BytesRefusal, refuseBytes } from '../../core/limits/quota.ts'
import { OUTPUTS_PER_RUN_MAX, UNUSED_ARTIFACT_TTL_MS } from '../../core/run/artifact.ts'
import { addBytes, lockForBytes } from '../limits/bytes.ts'
import { readLogOwner } from '../logs/run-logs.sql.ts'
import { type Command, command } from '../port.ts'
import { each, integer, integerOrNull, one, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import * as sql from './artifacts.sql.ts'

export interface Artifact {
  artifactId: string
  jobId: string | null
  /** The run that made it; null for what a job is given, and for what was sent without a job. */
  runId: string | null
  userId: string
  name: string
  /** As its sender or its job says; as it is, once it is ready. */
  sha256: string | null
  sizeBytes: number | null
  blobId: string | null
  state: 'awaited' | 'ready'
  createdAtMs: number
  expiresAtMs: number | null
}

/** Whose upload it is. */
export type UploadOwner =
  | { kind: 'input'; jobId: string }
  | { kind: 'output'; runId: string; workerId: string; leaseId: string }
  | { kind: 'unbound'; userId: string }

export interface UploadWish {
  /** For an artifact that has no row yet. */
  artifactId: string
  name: string
  sha256: string | null
  sizeBytes: number | null
  uploadTtlMs: number
}

type Full = { kind: 'refused'; reason: 'QUOTA_EXCEEDED'; refusal: BytesRefusal }

export type OpenOutcome =
  /** `quota`: what its user may still store; two uploads at once may both begin, and are counted when they are complete. */
  | { kind: 'open'; artifact: Artifact; uploadTtlMs: number; quota: ByteQuota }
  | { kind: 'ready'; artifact: Artifact }
  | { kind: 'refused'; reason: 'NOT_FOUND' | 'ALREADY_ENDED' | 'LEASE_LOST' | 'TOO_MANY' }
  | Full

/** Finds or makes the row that the bytes are for, and gives them time to come. */
export function openUpload(owner: UploadOwner, wish: UploadWish): Command<OpenOutcome> {
  return command('open_upload', function* work(): Work<OpenOutcome> {
    const userId = yield* userOf(owner)
    const quota = userId === null ? NO_LIMIT : yield* lockForBytes(userId)
    const refusal = quota.maxBytes === null ? null : yield* refuseUpload(owner, wish, quota)
    if (refusal !== null) return { kind: 'refused', reason: 'QUOTA_EXCEEDED', refusal }
    const outcome = yield* openFor(owner, wish)
    return outcome.kind === 'open' ? { ...outcome, quota } : outcome
  })
}

/** Before anything is written. What is here already may be sent again, whatever is stored by now. */
function* refuseUpload(owner: UploadOwner, wish: UploadWish, quota: ByteQuota): Work<BytesRefusal | null> {
  const { name, sha256, sizeBytes } = wish
  if (owner.kind === 'input') {
    const found = yield* one(sql.findInput, owner.jobId, name)
    if (found === undefined || text(found, 'state') === 'ready') return null
    return refuseBytes(quota, integerOrNull(found, 'size_bytes') ?? sizeBytes ?? 1)
  }
  const found =
    owner.kind === 'output'
      ? yield* one(sql.findOutput, owner.runId, name)
      : yield* one(sql.findUnbound, owner.userId, name, sha256)
  return textOrNull(found, 'state') === 'ready' ? null : refuseBytes(quota, sizeBytes ?? 1)
}

function* openFor(owner: UploadOwner, wish: UploadWish): Work<OpenOutcome> {
  if (owner.kind === 'input') return yield* openInput(owner.jobId, wish.name)
  const { artifactId, name, sha256, sizeBytes, uploadTtlMs } = wish
  if (owner.kind === 'unbound') {
    const earlier = sha256 === null ? undefined : yield* one(sql.findUnbound, owner.userId, name, sha256)
    if (earlier !== undefined) return { kind: 'ready', artifact: toArtifact(earlier) }
    const row = yield* one(sql.openUnbound, artifactId, owner.userId, name, sha256, sizeBytes, uploadTtlMs)
    return opened(row, uploadTtlMs)
  }
  const { runId, workerId, leaseId } = owner
  const run = yield* one(sql.shareLeasedRun, runId, workerId, leaseId)
  if (run === undefined) return { kind: 'refused', reason: 'LEASE_LOST' }
  if (integer(yield* one(sql.countOutputs, runId), 'count') >= OUTPUTS_PER_RUN_MAX) {
    return { kind: 'refused', reason: 'TOO_MANY' }
  }
  const [jobId, userId] = [text(run, 'job_id'), text(run, 'user_id')]
  const said = [name, sha256, sizeBytes, uploadTtlMs] as const
  return opened(yield* one(sql.openOutput, artifactId, jobId, runId, userId, ...said), uploadTtlMs)
}

const NO_LIMIT: ByteQuota = { maxBytes: null, usedBytes: null }

/** Whose bytes they are; null: nobody's, for the job or the run is not there. Locked before jobs and runs are, as everywhere. */
function* userOf(owner: UploadOwner): Work<string | null> {
  if (owner.kind === 'unbound') return owner.userId
  const row =
    owner.kind === 'input' ? yield* one(sql.readOwnerOfJob, owner.jobId) : yield* one(readLogOwner, owner.runId)
  return textOrNull(row, 'user_id')
}

function* openInput(jobId: string, name: string): Work<OpenOutcome> {
  const renewed = yield* one(sql.renewHeldRun, jobId)
  const found = yield* one(sql.findInput, jobId, name)
  if (found === undefined) return { kind: 'refused', reason: 'NOT_FOUND' }
  const outcome = opened(found, integerOrNull(renewed, 'upload_ttl_ms') ?? 0)
  return outcome.kind === 'open' && renewed === undefined ? { kind: 'refused', reason: 'ALREADY_ENDED' } : outcome
}

function opened(row: Row | undefined, uploadTtlMs: number): OpenOutcome {
  const artifact = toArtifact(row)
  if (artifact.state === 'ready') return { kind: 'ready', artifact }
  return { kind: 'open', artifact, uploadTtlMs, quota: NO_LIMIT }
}

/** A chunk has come. False: it need not go on, for nobody waits for it any more. */
export function renewUpload(owner: UploadOwner, artifactId: string, uploadTtlMs: number): Command<boolean> {
  return command('renew_upload', function* work(): Work<boolean> {
    if (owner.kind === 'input') return (yield* one(sql.renewHeldRun, owner.jobId)) !== undefined
    if (owner.kind === 'output') {
      const { runId, workerId, leaseId } = owner
      if ((yield* one(sql.shareLeasedRun, runId, workerId, leaseId)) === undefined) return false
    }
    return (yield* one(sql.renewArtifact, artifactId, uploadTtlMs)) !== undefined
  })
}

export interface Stored {
  artifactId: string
  blobId: string
  sha256: string
  sizeBytes: number
}

export type CompleteOutcome =
  /** `queue`: where a run was waiting for just this. */
  | { kind: 'ready' | 'repeated'; artifact: Artifact; queue: string | null }
  | { kind: 'refused'; reason: 'ALREADY_ENDED' | 'LEASE_LOST' | 'OTHER_CONTENT' }
  | Full

/**
 * The bytes are in their place: from now on the artifact is there, and if it was the last that its run waited for, the run
 * is let go in the same transaction. The blob of the answer need not be the caller's: the same content is kept once.
 */
export function completeUpload(owner: UploadOwner, stored: Stored): Command<CompleteOutcome> {
  return command('complete_upload', function* work(): Work<CompleteOutcome> {
    const userId = yield* userOf(owner)
    const quota = userId === null ? NO_LIMIT : yield* lockForBytes(userId)
    const held = owner.kind === 'input' ? yield* one(sql.lockHeldRun, owner.jobId) : undefined
    const run = held === undefined ? undefined : yield* one(sql.lockRunOfUpload, text(held, 'run_id'))
    if (owner.kind === 'output') {
      const { runId, workerId, leaseId } = owner
      const leased = yield* one(sql.shareLeasedRun, runId, workerId, leaseId)
      if (leased === undefined) return { kind: 'refused', reason: 'LEASE_LOST' }
    }
    const before = yield* one(sql.lockArtifact, stored.artifactId)
    if (before === undefined) return { kind: 'refused', reason: 'ALREADY_ENDED' }
    if (text(before, 'state') === 'ready') {
      const same = text(before, 'sha256') === stored.sha256
      if (!same) return { kind: 'refused', reason: 'OTHER_CONTENT' }
      return { kind: 'repeated', artifact: toArtifact(before), queue: null }
    }
    if (owner.kind === 'input' && run === undefined) return { kind: 'refused', reason: 'ALREADY_ENDED' }

    const { artifactId, sha256, sizeBytes } = stored
    const refusal = refuseBytes(quota, sizeBytes)
    if (refusal !== null) return { kind: 'refused', reason: 'QUOTA_EXCEEDED', refusal }
    const blobId = text(yield* one(sql.putBlob, stored.blobId, sha256, sizeBytes), 'blob_id')
    const keepMs = owner.kind === 'unbound' ? UNUSED_ARTIFACT_TTL_MS : null
    const artifact = toArtifact(yield* one(sql.readyArtifact, artifactId, blobId, sha256, sizeBytes, keepMs))
    if (quota.maxBytes !== null) yield* addBytes([[artifact.userId, sizeBytes]])
    const queue = run === undefined ? null : yield* letGo(text(run, 'id'), artifact.jobId ?? '')
    return { kind: 'ready', artifact, queue }
  })
}

/** Under the lock of the held run, whoever brings the last artifact sees that it is the last. */
function* letGo(runId: string, jobId: string): Work<string | null> {
  if (integer(yield* one(sql.countAwaited, jobId), 'count') > 0) return null
  const released = yield* one(sql.releaseHeldRun, runId)
  yield* each(sql.deleteHeldRuns, [[runId]])
  return textOrNull(released, 'queue')
}

export function findArtifact(artifactId: string): Command<Artifact | null> {
  return command('find_artifact', function* work(): Work<Artifact | null> {
    const row = yield* one(sql.readArtifact, artifactId)
    return row === undefined ? null : toArtifact(row)
  })
}

export function holdsLease(workerId: string, jobId: string): Command<boolean> {
  return command('holds_lease', function* work(): Work<boolean> {
    return (yield* one(sql.findLeaseOfWorker, jobId, workerId)) !== undefined
  })
}

export function listArtifacts(jobId: string, max: number): Command<Artifact[]> {
  return command('list_artifacts', function* work(): Work<Artifact[]> {
    return (yield* query(sql.readArtifactsOfJob, jobId, max)).map(toArtifact)
  })
}

function toArtifact(row: Row | undefined): Artifact {
  return {
    artifactId: text(row, 'id'),
    jobId: textOrNull(row, 'job_id'),
    runId: textOrNull(row, 'run_id'),
    userId: text(row, 'user_id'),
    name: text(row, 'name'),
    sha256: textOrNull(row, 'sha256'),
    sizeBytes: integerOrNull(row, 'size_bytes'),
    blobId: textOrNull(row, 'blob_id'),
    state: text(row, 'state') === 'ready' ? 'ready' : 'awaited',
    createdAtMs: integer(row, 'created_at'),
    expiresAtMs: integerOrNull(row, 'expires_at'),
  }
}
