export const ARTIFACT_STATES = ['awaited', 'ready'] as const
export type ArtifactState = (typeof ARTIFACT_STATES)[number]

/** Artifacts are files that are sent beside a job. */
export const DEFAULT_ARTIFACT_BYTES_MAX = 5 * 1024 ** 3
export const ARTIFACTS_PER_JOB_MAX = 100
export const OUTPUTS_PER_RUN_MAX = 1_000

export { DEFAULT_UPLOAD_TTL_SECONDS } from '@ichido/sdk/protocol'
/** An artifact without a job is kept for this long. */
export const UNUSED_ARTIFACT_TTL_MS = 7 * 24 * 3600 * 1000

/**
 * A run that waits for uploads stays in `ready`. This is added to its run_at, which then lies beyond any instant that a job can ask
 * for. So neither the promoter nor a lease finds the run. Quotas and cancel still see a PENDING run, and its wanted run_at is not
 * lost.
 */
export const UPLOAD_WAIT_MS = 1_000_000_000_000_000

export const awaitUploadsFrom = (runAtMs: number): number => runAtMs + UPLOAD_WAIT_MS
export const awaitsUploads = (runAtMs: number): boolean => runAtMs >= UPLOAD_WAIT_MS
/** The run_at that the job asked for. */
export const wantedRunAt = (runAtMs: number): number => (awaitsUploads(runAtMs) ? runAtMs - UPLOAD_WAIT_MS : runAtMs)

/** First and last byte, both included. */
export interface ByteRange {
  first: number
  last: number
}

/**
 * Applies a Range header (RFC 9110) to `sizeBytes` bytes. Null means the whole: for a malformed header, and for several
 * ranges, which a server may ignore.
 */
export function parseRange(header: string | undefined, sizeBytes: number): ByteRange | 'unsatisfiable' | null {
  const [, from, to] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header?.replaceAll(' ', '') ?? '') ?? []
  if (from === undefined || to === undefined || (from === '' && to === '')) return null
  if (from === '') {
    const bytes = Math.min(Number(to), sizeBytes)
    return bytes === 0 ? 'unsatisfiable' : { first: sizeBytes - bytes, last: sizeBytes - 1 }
  }
  const first = Number(from)
  const last = to === '' ? sizeBytes - 1 : Math.min(Number(to), sizeBytes - 1)
  if (to !== '' && Number(to) < first) return null
  return first >= sizeBytes ? 'unsatisfiable' : { first, last }
}
