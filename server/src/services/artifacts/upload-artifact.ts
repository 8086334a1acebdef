import { createHash } from 'node:crypto'
import { type ArtifactShape, DEFAULT_UPLOAD_TTL_SECONDS, IchidoError } from '@ichido/sdk/protocol'
import { type Blobs, type Receiving, TooManyParts, UploadGone } from '../../blobs/port.ts'
import { type BytesRefusal, bytesLeft, refuseBytes } from '../../core/limits/quota.ts'
import { type Caller, mayChange, mayRead } from '../../core/limits/roles.ts'
import { OUTPUTS_PER_RUN_MAX } from '../../core/run/artifact.ts'
import {
  type Artifact,
  type CompleteOutcome,
  completeUpload,
  type OpenOutcome,
  openUpload,
  renewUpload,
  type UploadOwner,
} from '../../store/artifacts/artifacts.ts'
import { findJobs } from '../../store/jobs/read-jobs.ts'
import { jobIdOf } from '../../store/runs/run-facts.ts'
import { iso, isoOrNull, notFound } from '../answers.ts'
import { blobsOf, type Deps } from '../deps.ts'

export interface UploadRequest {
  name: string
  jobId: string | null
  leaseId: string | null
  sha256: string | null
  sizeBytes: number | null
  /** Where the upload continues; null: it begins. */
  fromByte: number | null
  /** The length of this request, if the sender says it. */
  contentLength: number | null
  source: AsyncIterable<Uint8Array>
}

export type Uploaded =
  | { kind: 'ready' | 'repeated'; artifact: ArtifactShape; receivedBytes: number }
  /** A part has arrived, and the rest is missing. */
  | { kind: 'partial'; artifact: ArtifactShape; receivedBytes: number }
  /** The sender has disconnected. */
  | { kind: 'cut' }

const UPLOAD_TTL_MS = DEFAULT_UPLOAD_TTL_SECONDS * 1000
/** A running upload renews its deadline this often, or four times within the deadline. */
const RENEW_MS = 15_000

type Sender = { caller: Caller } | { workerId: string }

/** The bytes are stored before the row, so an artifact that is ready is on disk even after a crash. */
export function createUpload(deps: Deps): (sender: Sender, request: UploadRequest) => Promise<Uploaded> {
  const { store, world, bus, limits } = deps

  async function ownerOf(sender: Sender, { jobId, leaseId }: UploadRequest): Promise<UploadOwner> {
    if ('workerId' in sender) {
      if (leaseId === null) throw missing('lease_id')
      const jobId = jobIdOf(leaseId)
      if (jobId === null) throw notFound('lease', leaseId)
      return { kind: 'output', jobId, workerId: sender.workerId, leaseId }
    }
    if (leaseId !== null)
      throw new IchidoError('FORBIDDEN', 'Only the worker that holds the lease can send files with it')
    const { caller } = sender
    if (jobId === null) return { kind: 'unbound', userId: caller.userId }
    const [job] = await store.read(findJobs([jobId]))
    if (job === undefined || !mayRead(caller, job.user_id)) throw notFound('job', jobId)
    if (!mayChange(caller, job.user_id)) throw new IchidoError('FORBIDDEN')
    return { kind: 'input', jobId }
  }

  /** Renews the deadline of the upload while bytes arrive, and ends the upload if its job or lease has ended. */
  function renewal(owner: UploadOwner, artifactId: string, ttlMs: number) {
    let lastMs = world.monotonic()
    return async (force = false) => {
      if (!force && world.monotonic() - lastMs < Math.min(RENEW_MS, ttlMs / 4)) return
      lastMs = world.monotonic()
      if (!(await store.write(renewUpload(owner, artifactId, ttlMs)))) throw refusal(owner, GONE[owner.kind])
    }
  }

  /** Moves the bytes to their place, and then marks the artifact as ready. */
  async function complete(
    blobs: Blobs,
    owner: UploadOwner,
    artifact: Artifact,
    receiving: Receiving,
    sha256: string | null,
  ) {
    const { artifactId } = artifact
    const sealed = await receiving.seal()
    if (sha256 !== null && sealed.sha256 !== sha256) {
      await blobs.discard(artifactId)
      throw new IchidoError('INVALID_PAYLOAD', `The bytes have the SHA-256 ${sealed.sha256}, not ${sha256}`, {
        field: 'sha256',
      })
    }
    const blobId = world.uuid()
    await blobs.place(sealed, blobId)
    const outcome = await store.write(completeUpload(owner, { artifactId, blobId, ...sealed }))
    const used = outcome.kind === 'refused' ? null : outcome.artifact.blobId
    if (used !== blobId) await blobs.remove({ sha256: sealed.sha256, blobId })
    await blobs.discard(artifactId)
    if (outcome.kind === 'refused') throw refusalOf(owner, outcome)
    if (outcome.queue !== null && artifact.jobId !== null) bus.wake([`job:${artifact.jobId}`])
    return { kind: outcome.kind, artifact: renderArtifact(outcome.artifact), receivedBytes: sealed.sizeBytes }
  }

  /** Appends the new bytes to the ones that have arrived. */
  async function receive(request: UploadRequest, owner: UploadOwner, open: Opened): Promise<Uploaded> {
    const blobs = blobsOf(deps)
    const { artifact, uploadTtlMs, quota } = open
    const { artifactId } = artifact
    const wanted = expected(artifact, request)
    const bytesMax = Math.min(limits.artifactBytesMax, wanted.sizeBytes ?? limits.artifactBytesMax, bytesLeft(quota))
    /** The refusal of too many bytes: by the quota if the quota is the limit. */
    const over = () => {
      const refusal = refuseBytes(quota, bytesMax + 1)
      return bytesMax < bytesLeft(quota) || refusal === null ? tooLong(wanted.sizeBytes, bytesMax) : full(refusal)
    }
    const fromByte = request.fromByte ?? 0
    if (fromByte + (request.contentLength ?? 0) > bytesMax) throw over()
    const here = request.fromByte === null ? 0 : await receivedOf(blobs, artifactId)
    if (here !== fromByte) throw elsewhere(here)

    const receiving = await blobs.receive(artifactId, fromByte)
    const renew = renewal(owner, artifactId, uploadTtlMs)
    const received = await receiving.take(request.source, bytesMax, renew)
    if (received.end === 'over') {
      await blobs.discard(artifactId)
      throw over()
    }
    await renew(true)
    if (received.end === 'cut') return { kind: 'cut' }
    if (wanted.sizeBytes !== null && received.bytes < wanted.sizeBytes) {
      return { kind: 'partial', artifact: renderArtifact(artifact), receivedBytes: received.bytes }
    }
    return complete(blobs, owner, artifact, receiving, wanted.sha256)
  }

  return async (sender, request) => {
    blobsOf(deps)
    if ((request.sizeBytes ?? 0) > limits.artifactBytesMax) throw tooLong(null, limits.artifactBytesMax)
    const owner = await ownerOf(sender, request)
    const { name, sha256, sizeBytes } = request
    const wish = { artifactId: world.uuid(), name, sha256, sizeBytes, uploadTtlMs: UPLOAD_TTL_MS }
    const outcome = await store.write(openUpload(owner, wish))
    if (outcome.kind === 'refused') throw refusalOf(owner, outcome, name)
    if (outcome.kind === 'ready') return repeat(outcome.artifact, request, limits.artifactBytesMax)
    try {
      return await receive(request, owner, outcome)
    } catch (error) {
      if (error instanceof UploadGone) throw elsewhere(await receivedOf(blobsOf(deps), outcome.artifact.artifactId))
      throw asRefusal(error)
    }
  }
}

/** How many bytes of an upload have arrived. */
export async function receivedOf(blobs: Blobs, artifactId: string): Promise<number> {
  return blobs.received(artifactId).catch((error: unknown) => {
    throw asRefusal(error)
  })
}

/** Too many parts are an error of the sender. */
function asRefusal(error: unknown): unknown {
  return error instanceof TooManyParts ? new IchidoError('INVALID_PAYLOAD', error.message) : error
}

type Opened = Extract<OpenOutcome, { kind: 'open' }>

/** The job and the sender may both give a hash and a size, which must agree. */
function expected(artifact: Artifact, request: UploadRequest): { sha256: string | null; sizeBytes: number | null } {
  for (const [field, known, said] of [
    ['sha256', artifact.sha256, request.sha256],
    ['size_bytes', artifact.sizeBytes, request.sizeBytes],
  ] as const) {
    if (known === null || said === null || known === said) continue
    throw new IchidoError('INVALID_PAYLOAD', `${field} is ${said}, but the job waits for ${known}`, { field })
  }
  return { sha256: artifact.sha256 ?? request.sha256, sizeBytes: artifact.sizeBytes ?? request.sizeBytes }
}

/** The artifact is ready. It is the same by its hash, by an offset at its end, or by the bytes that come. */
async function repeat(artifact: Artifact, request: UploadRequest, bytesMax: number): Promise<Uploaded> {
  const atEnd = request.sha256 === null && request.fromByte === artifact.sizeBytes
  const sha256 = request.sha256 ?? (atEnd ? artifact.sha256 : await hashOf(request, bytesMax))
  if (sha256 === null) return { kind: 'cut' }
  if (sha256 !== artifact.sha256) throw new IchidoError('ARTIFACT_CONFLICT')
  return { kind: 'repeated', artifact: renderArtifact(artifact), receivedBytes: artifact.sizeBytes ?? 0 }
}

async function hashOf({ source, fromByte }: UploadRequest, bytesMax: number): Promise<string | null> {
  if (fromByte !== null && fromByte > 0) throw new IchidoError('ARTIFACT_CONFLICT')
  const hash = createHash('sha256')
  let bytes = 0
  try {
    for await (const chunk of source) {
      bytes += chunk.length
      if (bytes > bytesMax) throw tooLong(null, bytesMax)
      hash.update(chunk)
    }
  } catch (error) {
    if (error instanceof IchidoError) throw error
    return null
  }
  return hash.digest('hex')
}

function refusalOf(
  owner: UploadOwner,
  outcome: Extract<OpenOutcome | CompleteOutcome, { kind: 'refused' }>,
  name = '',
): IchidoError {
  return outcome.reason === 'QUOTA_EXCEEDED' ? full(outcome.refusal) : refusal(owner, outcome.reason, name)
}

function full({ code, message, details }: BytesRefusal): IchidoError {
  return new IchidoError(code, message, details)
}

const GONE = { input: 'ALREADY_ENDED', output: 'LEASE_LOST', unbound: 'ALREADY_ENDED' } as const

type Reason = 'NOT_FOUND' | 'ALREADY_ENDED' | 'LEASE_LOST' | 'TOO_MANY' | 'OTHER_CONTENT'

function refusal(owner: UploadOwner, reason: Reason, name = ''): IchidoError {
  switch (reason) {
    case 'NOT_FOUND':
      return new IchidoError('NOT_FOUND', `The job waits for no artifact named ${JSON.stringify(name)}`)
    case 'ALREADY_ENDED':
      if (owner.kind === 'input')
        return new IchidoError('ALREADY_ENDED', `Job ${owner.jobId} no longer waits for this artifact`)
      return elsewhere(0)
    case 'LEASE_LOST':
      return new IchidoError('LEASE_LOST')
    case 'TOO_MANY':
      return new IchidoError('INVALID_PAYLOAD', `A run can have at most ${OUTPUTS_PER_RUN_MAX} artifacts`)
    case 'OTHER_CONTENT':
      return new IchidoError('ARTIFACT_CONFLICT')
  }
}

function missing(field: string): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', `Missing required query parameter: ${field}`, { field })
}

function elsewhere(receivedBytes: number): IchidoError {
  return new IchidoError('UPLOAD_OFFSET_MISMATCH', `${receivedBytes} bytes have arrived; continue from there`, {
    upload_offset: receivedBytes,
  })
}

function tooLong(sizeBytes: number | null, bytesMax: number): IchidoError {
  return sizeBytes === bytesMax
    ? new IchidoError('INVALID_PAYLOAD', `The body has more than the ${sizeBytes} bytes of size_bytes`, {
        field: 'size_bytes',
      })
    : new IchidoError('PAYLOAD_TOO_LARGE', `An artifact may have up to ${bytesMax} bytes`)
}

export function renderArtifact(artifact: Artifact): ArtifactShape {
  return {
    artifact_id: artifact.artifactId,
    job_id: artifact.jobId,
    run_id: artifact.runId,
    name: artifact.name,
    sha256: artifact.sha256,
    size_bytes: artifact.sizeBytes,
    state: artifact.state,
    created_at: iso(artifact.createdAtMs),
    expires_at: isoOrNull(artifact.expiresAtMs),
  }
}
