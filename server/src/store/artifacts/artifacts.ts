import { type ByteQuota, type BytesRefusal, refuseBytes } from '../../core/limits/quota.ts'
import {
  type ArtifactState,
  awaitUploadsFrom,
  OUTPUTS_PER_RUN_MAX,
  UNUSED_ARTIFACT_TTL_MS,
} from '../../core/run/artifact.ts'
import { readOwnerOfJob } from '../jobs/job-owner.ts'
import { addBytes, lockForBytes } from '../limits/bytes.ts'
import { type Command, command, commandIn } from '../port.ts'
import { tokenOf } from '../runs/run-facts.ts'
import { each, exactlyOne, one, type ParamsOf, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './artifacts.sql.ts'
import { insertInputs, insertUploadWaits, shareOwnBlobs } from './artifacts.sql.ts'

export interface Artifact {
  artifactId: string
  jobId: string | null
  /** The run that made it; null for inputs of a job, and for artifacts without a job. */
  runId: string | null
  userId: string
  name: string
  /** The expected hash; the actual one once the artifact is ready. */
  sha256: string | null
  sizeBytes: number | null
  blobId: string | null
  state: ArtifactState
  createdAtMs: number
  expiresAtMs: number | null
}

/** The owner of an upload. */
export type UploadOwner =
  | { kind: 'input'; jobId: string }
  | { kind: 'output'; jobId: string; workerId: string; leaseId: string }
  | { kind: 'unbound'; userId: string }

interface UploadWish {
  /** The id for a new artifact. */
  artifactId: string
  name: string
  sha256: string | null
  sizeBytes: number | null
  uploadTtlMs: number
}

type Full = { kind: 'refused'; reason: 'QUOTA_EXCEEDED'; refusal: BytesRefusal }

export type OpenOutcome =
  /**
   * `quota`: the bytes that the user may still store. Two uploads may both begin, and are counted when they are
   * complete.
   */
  | { kind: 'open'; artifact: Artifact; uploadTtlMs: number; quota: ByteQuota }
  | { kind: 'ready'; artifact: Artifact }
  | { kind: 'refused'; reason: 'NOT_FOUND' | 'ALREADY_ENDED' | 'LEASE_LOST' | 'TOO_MANY' }
  | Full

/** Finds or creates the row for the bytes, and starts their timeout. */
export function openUpload(owner: UploadOwner, wish: UploadWish): Command<OpenOutcome> {
  return commandIn('users', 'open_upload', function* work(): Work<OpenOutcome> {
    const userId = yield* userOf(owner)
    const quota = userId === null ? NO_LIMIT : yield* lockForBytes(userId)
    const refusal = quota.maxBytes === null ? null : yield* refuseUpload(owner, wish, quota)
    if (refusal !== null) return { kind: 'refused', reason: 'QUOTA_EXCEEDED', refusal }
    const outcome = yield* openFor(owner, wish)
    return outcome.kind === 'open' ? { ...outcome, quota } : outcome
  })
}

/**
 * Checks the quota before anything is written. An artifact that is ready may be sent again, even if the quota is full.
 */
function* refuseUpload(owner: UploadOwner, wish: UploadWish, quota: ByteQuota): Work<BytesRefusal | null> {
  const { name, sha256, sizeBytes } = wish
  if (owner.kind === 'input') {
    const found = yield* one(sql.findInput, { job_id: owner.jobId, name })
    if (found === undefined || found.state === 'ready') return null
    return refuseBytes(quota, found.size_bytes ?? sizeBytes ?? 1)
  }
  const run = owner.kind === 'output' ? yield* shareHeldRun(owner) : undefined
  if (owner.kind === 'output' && run === undefined) return null
  const found =
    owner.kind === 'output'
      ? yield* one(sql.findOutput, { run_id: run?.run_id ?? '', name })
      : yield* one(sql.findUnbound, { user_id: owner.userId, name, sha256 })
  return found?.state === 'ready' ? null : refuseBytes(quota, sizeBytes ?? 1)
}

function* openFor(owner: UploadOwner, wish: UploadWish): Work<OpenOutcome> {
  if (owner.kind === 'input') return yield* openInput(owner.jobId, wish.name)
  const { artifactId, name, sha256, sizeBytes, uploadTtlMs } = wish
  const wanted = { artifact_id: artifactId, name, sha256, size_bytes: sizeBytes, upload_ttl_ms: uploadTtlMs }
  if (owner.kind === 'unbound') {
    const user_id = owner.userId
    const earlier = sha256 === null ? undefined : yield* one(sql.findUnbound, { user_id, name, sha256 })
    if (earlier !== undefined) return { kind: 'ready', artifact: toArtifact(earlier) }
    return opened(yield* exactlyOne(sql.openUnbound, { ...wanted, user_id }), uploadTtlMs)
  }
  const run = yield* shareHeldRun(owner)
  if (run === undefined) return { kind: 'refused', reason: 'LEASE_LOST' }
  const { job_id, run_id, user_id } = run
  const { count } = yield* exactlyOne(sql.countOutputs, { run_id })
  if (count >= OUTPUTS_PER_RUN_MAX) return { kind: 'refused', reason: 'TOO_MANY' }
  return opened(yield* exactlyOne(sql.openOutput, { ...wanted, job_id, run_id, user_id }), uploadTtlMs)
}

function shareHeldRun({ jobId, workerId, leaseId }: Extract<UploadOwner, { kind: 'output' }>) {
  return one(sql.shareHeldRun, { job_id: jobId, worker_id: workerId, token: tokenOf(leaseId) })
}

const NO_LIMIT: ByteQuota = { maxBytes: null, usedBytes: null }

/**
 * The user that stores the bytes; null if the job does not exist. As everywhere, the user is locked before jobs and
 * runs.
 */
function* userOf(owner: UploadOwner): Work<string | null> {
  if (owner.kind === 'unbound') return owner.userId
  return (yield* one(readOwnerOfJob, { job_id: owner.jobId }))?.user_id ?? null
}

function* openInput(jobId: string, name: string): Work<OpenOutcome> {
  const renewed = yield* one(sql.renewUploadWait, { job_id: jobId })
  const found = yield* one(sql.findInput, { job_id: jobId, name })
  if (found === undefined) return { kind: 'refused', reason: 'NOT_FOUND' }
  const outcome = opened(found, renewed?.upload_ttl_ms ?? 0)
  return outcome.kind === 'open' && renewed === undefined ? { kind: 'refused', reason: 'ALREADY_ENDED' } : outcome
}

function opened(row: ArtifactRow, uploadTtlMs: number): OpenOutcome {
  const artifact = toArtifact(row)
  if (artifact.state === 'ready') return { kind: 'ready', artifact }
  return { kind: 'open', artifact, uploadTtlMs, quota: NO_LIMIT }
}

/** Extends the timeout after a chunk. False: the upload is no longer needed. */
export function renewUpload(owner: UploadOwner, artifactId: string, uploadTtlMs: number): Command<boolean> {
  return command('renew_upload', function* work(): Work<boolean> {
    if (owner.kind === 'input') return (yield* one(sql.renewUploadWait, { job_id: owner.jobId })) !== undefined
    if (owner.kind === 'output' && (yield* shareHeldRun(owner)) === undefined) return false
    const renewed = yield* one(sql.renewArtifact, { artifact_id: artifactId, upload_ttl_ms: uploadTtlMs })
    return renewed !== undefined
  })
}

export interface Stored {
  artifactId: string
  blobId: string
  sha256: string
  sizeBytes: number
}

export type CompleteOutcome =
  /** `queue`: the queue of a run that waited only for this artifact. */
  | { kind: 'ready' | 'repeated'; artifact: Artifact; queue: string | null }
  | { kind: 'refused'; reason: 'ALREADY_ENDED' | 'LEASE_LOST' | 'OTHER_CONTENT' }
  | Full

/**
 * The bytes are stored, so the artifact becomes ready. If it was the last that its run waited for, the run is released
 * in the same transaction. The returned blob may be another one with the same content.
 */
export function completeUpload(owner: UploadOwner, stored: Stored): Command<CompleteOutcome> {
  return commandIn('users', 'complete_upload', function* work(): Work<CompleteOutcome> {
    const userId = yield* userOf(owner)
    const quota = userId === null ? NO_LIMIT : yield* lockForBytes(userId)
    const wait = owner.kind === 'input' ? yield* one(sql.lockUploadWait, { job_id: owner.jobId }) : undefined
    const run = wait === undefined ? undefined : yield* one(sql.lockAwaitingRun, wait)
    if (owner.kind === 'output' && (yield* shareHeldRun(owner)) === undefined) {
      return { kind: 'refused', reason: 'LEASE_LOST' }
    }
    const before = yield* one(sql.lockArtifact, { artifact_id: stored.artifactId })
    if (before === undefined) return { kind: 'refused', reason: 'ALREADY_ENDED' }
    if (before.state === 'ready') {
      if (before.sha256 !== stored.sha256) return { kind: 'refused', reason: 'OTHER_CONTENT' }
      return { kind: 'repeated', artifact: toArtifact(before), queue: null }
    }
    if (owner.kind === 'input' && run === undefined) return { kind: 'refused', reason: 'ALREADY_ENDED' }

    const { sha256, sizeBytes } = stored
    const refusal = refuseBytes(quota, sizeBytes)
    if (refusal !== null) return { kind: 'refused', reason: 'QUOTA_EXCEEDED', refusal }
    const content = { sha256, size_bytes: sizeBytes }
    const blob = yield* exactlyOne(sql.putBlob, { blob_id: stored.blobId, ...content })
    const keep_ms = owner.kind === 'unbound' ? UNUSED_ARTIFACT_TTL_MS : null
    const ready = { artifact_id: stored.artifactId, ...blob, ...content, keep_ms }
    const artifact = toArtifact(yield* exactlyOne(sql.readyArtifact, ready))
    if (quota.maxBytes !== null) yield* addBytes([[artifact.userId, sizeBytes]])
    const queue = run === undefined ? null : yield* letGo(run.job_id)
    return { kind: 'ready', artifact, queue }
  })
}

/**
 * Lets the run go after its last artifact. The lock of the upload wait makes sure that one upload sees that it is the
 * last.
 */
function* letGo(job_id: string): Work<string | null> {
  const { count } = yield* exactlyOne(sql.countAwaited, { job_id })
  if (count > 0) return null
  const released = yield* one(sql.endUploadWait, { job_id })
  yield* each(sql.deleteUploadWaits, [{ job_id }])
  return released?.queue ?? null
}

export function findArtifact(artifactId: string): Command<Artifact | null> {
  return command('find_artifact', function* work(): Work<Artifact | null> {
    const row = yield* one(sql.readArtifact, { artifact_id: artifactId })
    return row === undefined ? null : toArtifact(row)
  })
}

export function holdsLease(workerId: string, jobId: string): Command<boolean> {
  return command('holds_lease', function* work(): Work<boolean> {
    return (yield* one(sql.findLeaseOfWorker, { job_id: jobId, worker_id: workerId })) !== undefined
  })
}

export function listArtifacts(jobId: string, max: number): Command<Artifact[]> {
  return command('list_artifacts', function* work(): Work<Artifact[]> {
    return (yield* query(sql.readArtifactsOfJob, { job_id: jobId, max })).map(toArtifact)
  })
}

type ArtifactRow = RowOf<typeof sql.readArtifact>

function toArtifact(row: ArtifactRow): Artifact {
  return {
    artifactId: row.id,
    jobId: row.job_id,
    runId: row.run_id,
    userId: row.user_id,
    name: row.name,
    sha256: row.sha256,
    sizeBytes: row.size_bytes,
    blobId: row.blob_id,
    state: row.state,
    createdAtMs: row.created_at,
    expiresAtMs: row.expires_at,
  }
}

/** The artifacts of a job, and the timeout of the next chunk. */
export interface AwaitedArtifacts {
  uploadTtlMs: number
  list: readonly { artifactId: string; name: string; sha256: string | null; sizeBytes: number | null }[]
}

interface Item {
  userId: string
  artifacts?: AwaitedArtifacts | undefined
}

interface Admitted {
  item: Item & { jobId: string }
  runAtMs: number
}

/**
 * Records the artifacts of a submission's jobs. Runs of jobs with missing artifacts wait for the uploads. Content that the
 * user sent before is available. It runs no statement if there are no artifacts.
 */
export function* awaitUploads<A extends Admitted>(admitted: A[], own: OwnBlobs): Work<A[]> {
  const wanting = admitted.filter(({ item }) => item.artifacts !== undefined)
  if (wanting.length === 0) return admitted
  const inputs: ParamsOf<typeof insertInputs>[] = []
  const waits = new Map<Admitted, number>()
  for (const one of wanting) {
    const { jobId, userId, artifacts } = one.item
    for (const { artifactId, name, sha256, sizeBytes } of artifacts?.list ?? []) {
      const blob = fitting(own, userId, sha256, sizeBytes)
      if (blob === undefined) waits.set(one, artifacts?.uploadTtlMs ?? 0)
      inputs.push({
        artifact_id: artifactId,
        job_id: jobId,
        user_id: userId,
        name,
        sha256,
        size_bytes: blob?.sizeBytes ?? sizeBytes,
        blob_id: blob?.blobId ?? null,
      })
    }
  }
  yield* each(insertInputs, inputs)
  yield* each(
    insertUploadWaits,
    [...waits].map(([{ item }, ttlMs]) => ({ job_id: item.jobId, upload_ttl_ms: ttlMs })),
  )
  return admitted.map((one) => (waits.has(one) ? { ...one, runAtMs: awaitUploadsFrom(one.runAtMs) } : one))
}

function fitting(own: OwnBlobs, userId: string, sha256: string | null, sizeBytes: number | null) {
  const blob = own.get(nameOf(userId, sha256))
  return blob === undefined || (sizeBytes !== null && sizeBytes !== blob.sizeBytes) ? undefined : blob
}

/** The bytes that a submission stores at once. Missing artifacts are counted when they arrive. */
export function bytesOf({ userId, payload, artifacts }: Item & { payload: string }, own: OwnBlobs): number {
  const sizes = artifacts?.list.map(({ sha256, sizeBytes }) => fitting(own, userId, sha256, sizeBytes)?.sizeBytes ?? 0)
  return (sizes ?? []).reduce((sum, size) => sum + size, Buffer.byteLength(payload))
}

/** Keyed by user and hash. */
export type OwnBlobs = ReadonlyMap<string, { blobId: string; sizeBytes: number }>

/** Finds content that the users have sent before. It runs no statement if there are no artifacts. */
export function* ownBlobs(items: readonly Item[]): Work<OwnBlobs> {
  const wanted = new Map<string, ParamsOf<typeof shareOwnBlobs>>()
  for (const item of items) {
    for (const { sha256 } of item.artifacts?.list ?? []) {
      if (sha256 !== null) wanted.set(nameOf(item.userId, sha256), { user_id: item.userId, sha256 })
    }
  }
  const rows = yield* each(shareOwnBlobs, [...wanted.values()])
  return new Map(
    rows.map((row) => [nameOf(row.user_id, row.sha256), { blobId: row.blob_id, sizeBytes: row.size_bytes }]),
  )
}

function nameOf(userId: string, sha256: string | null): string {
  return JSON.stringify([userId, sha256])
}
