import { type ArtifactShape, IchidoError } from '../protocol/index.ts'
import { type ClientWorld, sleep } from '../world.ts'
import { query, type Request } from './call.ts'
import { NoAnswer } from './errors.ts'
import { retryDelayMs, typed, UPLOAD_TIMEOUT_MS } from './retry.ts'
import type { UploadOptions } from './transport.ts'

/** The most that is lost if a connection breaks, and the step of `onProgress`. */
const PART_BYTES = 4 * 1024 * 1024
/** The server keeps up to 1,000 parts; a broken part may leave two. */
const PARTS_MAX = 500
/** After this many wrong offsets in a row, another client must be sending the same file. */
const MISMATCHES_MAX = 10

/**
 * Sends the bytes in parts, each from the server's offset, so a broken connection costs less than a part. It continues an
 * earlier upload only with a hash, which proves that the earlier bytes are the same.
 */
export async function uploadParts(
  request: Request,
  world: ClientWorld,
  bytes: Blob,
  { name, jobId, sha256, onProgress, signal }: UploadOptions,
): Promise<ArtifactShape> {
  const partBytes = Math.max(PART_BYTES, Math.ceil(bytes.size / PARTS_MAX))
  const path = `/v1/artifacts?${query({ name, job_id: jobId, sha256, size_bytes: bytes.size })}`
  const report = (sentBytes: number) => onProgress?.({ sentBytes, totalBytes: bytes.size })
  let from = sha256 === undefined ? undefined : 0
  let asks = sha256 !== undefined
  for (let mismatches = 0; ; ) {
    const at = from ?? 0
    let body = new Blob()
    // If the offset is uncertain, an empty request asks for it, so that no part is sent in vain.
    const bodyOf = (tries: number) => {
      body = bytes.slice(at, asks || (tries > 1 && from !== undefined) ? at : at + partBytes)
      return body
    }
    const headers: Record<string, string> = from === undefined ? {} : { 'upload-offset': String(from) }
    try {
      const answer = await request('POST', path, { bodyOf, headers, signal, timeoutMs: UPLOAD_TIMEOUT_MS })
      if (answer.response.status !== 202) {
        report(bytes.size)
        return answer.body as ArtifactShape
      }
      from = at + body.size
      if (body.size > 0) mismatches = 0
      else if (++mismatches > MISMATCHES_MAX) throw new NoAnswer(`No part of ${name} arrives at the server`)
    } catch (error) {
      const inLast = at > 0 && at < bytes.size && at + partBytes >= bytes.size
      const offset = offsetOf(error, inLast ? bytes.size : undefined)
      if (offset === undefined || ++mismatches > MISMATCHES_MAX) throw typed(error)
      from = offset
      // Bytes of a broken connection may still be arriving.
      if (mismatches > 1) await sleep(world, retryDelayMs(mismatches - 1, error, world.random), signal)
    }
    asks = false
    report(from)
  }
}

/** The offset at which to continue after a refusal; undefined for another error. */
function offsetOf(error: unknown, end: number | undefined): number | undefined {
  if (!(error instanceof IchidoError)) return undefined
  const { upload_offset: offset } = error.details
  if (error.code === 'UPLOAD_OFFSET_MISMATCH' && typeof offset === 'number') return offset
  // After the last part, its answer got lost: a request at the end gets the same answer again. After another part, the file
  // belongs to another upload.
  return error.code === 'ARTIFACT_CONFLICT' ? end : undefined
}
