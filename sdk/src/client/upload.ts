import { type ArtifactShape, IchidoError } from '../protocol/index.ts'
import { type ClientWorld, sleep } from '../world.ts'
import { NoAnswer } from './errors.ts'
import { query } from './query.ts'
import type { Request } from './request.ts'
import { retryDelayMs, typed, UPLOAD_TIMEOUT_MS } from './retry.ts'
import type { UploadOptions } from './transport.ts'

/** What is lost at most when a connection breaks, and how often progress is told. */
const PART_BYTES = 4 * 1024 * 1024
/** The server keeps up to 1,000; a part that breaks off in the middle leaves two. */
const PARTS_MAX = 500
/** How often in a row the server may say that it is elsewhere before somebody else must be sending, too. */
const DETOURS_MAX = 10

/**
 * Sends the bytes part by part, each from where the server is: a connection that breaks costs a part of a part. Bytes that
 * an earlier call has left are taken for a beginning of these only if a hash will tell.
 */
export async function uploadParts(
  request: Request,
  world: ClientWorld,
  bytes: Blob,
  { name, jobId, sha256, onProgress, signal }: UploadOptions,
): Promise<ArtifactShape> {
  const partBytes = Math.max(PART_BYTES, Math.ceil(bytes.size / PARTS_MAX))
  const path = `/v1/artifacts?${query({ name, job_id: jobId, sha256, size_bytes: bytes.size })}`
  const tell = (sentBytes: number) => onProgress?.({ sentBytes, totalBytes: bytes.size })
  let from = sha256 === undefined ? undefined : 0
  let asks = sha256 !== undefined
  for (let detours = 0; ; ) {
    const at = from ?? 0
    let body = new Blob()
    // Where it may not be at this place, an empty request asks: a whole part would be sent in vain.
    const bodyOf = (tries: number) => {
      body = bytes.slice(at, asks || (tries > 1 && from !== undefined) ? at : at + partBytes)
      return body
    }
    const headers: Record<string, string> = from === undefined ? {} : { 'upload-offset': String(from) }
    try {
      const answer = await request('POST', path, { bodyOf, headers, signal, timeoutMs: UPLOAD_TIMEOUT_MS })
      if (answer.response.status !== 202) {
        tell(bytes.size)
        return answer.body as ArtifactShape
      }
      from = at + body.size
      if (body.size > 0) detours = 0
      else if (++detours > DETOURS_MAX) throw new NoAnswer(`No part of ${name} arrives at the server`)
    } catch (error) {
      const inLast = at > 0 && at < bytes.size && at + partBytes >= bytes.size
      const elsewhere = placeOf(error, inLast ? bytes.size : undefined)
      if (elsewhere === undefined || ++detours > DETOURS_MAX) throw typed(error)
      from = elsewhere
      // What was on its way when a connection broke may still be arriving.
      if (detours > 1) await sleep(world, retryDelayMs(detours - 1, error, world.random), signal)
    }
    asks = false
    tell(from)
  }
}

/** Where to go on after a refusal; undefined when it is not about that. */
function placeOf(error: unknown, end: number | undefined): number | undefined {
  if (!(error instanceof IchidoError)) return undefined
  const { upload_offset: offset } = error.details
  if (error.code === 'UPLOAD_OFFSET_MISMATCH' && typeof offset === 'number') return offset
  // All of it is there: the answer to the last part got lost. At its end the server answers as it did then. After any other
  // part it is somebody else's.
  return error.code === 'ARTIFACT_CONFLICT' ? end : undefined
}
