import { IchidoError } from '../protocol/index.ts'

/** Wire names that a caller of the library knows by another name. */
const NAMES: Readonly<Record<string, string>> = {
  idempotency_key: 'key',
  dedupe_key: 'dedupeKey',
  run_at: 'runAt',
  delay_seconds: 'delaySeconds',
  max_attempts: 'maxAttempts',
  base_seconds: 'baseSeconds',
  cap_seconds: 'capSeconds',
  timeout_seconds: 'timeoutSeconds',
  lease_ttl_seconds: 'leaseTtlSeconds',
  continuation_seconds: 'continuationSeconds',
  seq_scope: 'seqScope',
  estimated_cost: 'estimatedCost',
  reservation_id: 'reservationId',
  key_ttl_hours: 'keyTtlHours',
  upload_ttl_seconds: 'uploadTtlSeconds',
  size_bytes: 'sizeBytes',
  ttl_seconds: 'ttlSeconds',
  job_id: 'jobId',
}
const WIRE_NAME = new RegExp(`\\b(${Object.keys(NAMES).join('|')})\\b`, 'g')
/** The caller chose the names inside of these fields. */
const OF_THE_CALLER = /^(payload|labels|data)\b/

const renamed = (text: string) => text.replace(WIRE_NAME, (name) => NAMES[name] ?? name)

/** A refusal in the words of the library: who wrote `delaySeconds` need not know what it is called on the wire. */
export function inLibraryWords(error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.code !== 'INVALID_PAYLOAD') return error
  const { field } = error.details
  if (typeof field !== 'string' || OF_THE_CALLER.test(field)) return error
  return new IchidoError(error.code, renamed(error.message), { ...error.details, field: renamed(field) }, error)
}

/** Settles as the call does, but is refused in the words of the library. */
export async function worded<T>(call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (error) {
    throw inLibraryWords(error)
  }
}
