import type { Accepted, Transport } from '../client/transport.ts'
import type { SubmitRequest } from '../protocol/index.ts'
import type { Send } from './item.ts'

/**
 * Long enough for somebody who was cut off after a submission arrived and comes back after a holiday: as long as the
 * server knows the key, the same submission is the same job.
 */
const KEY_TTL_HOURS = 30 * 24

/**
 * Makes the `send` of an outbox of job submissions. The outbox retries by itself, so the transport need not:
 * `sendJobs(httpTransport({ url, token, retry: { tries: 1 } }))`.
 */
export function sendJobs(transport: Transport): Send<SubmitRequest, Accepted> {
  return ({ key, body }, signal) => transport.submit({ key_ttl_hours: KEY_TTL_HOURS, ...body }, { key, signal })
}
