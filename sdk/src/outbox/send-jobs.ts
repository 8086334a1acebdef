import type { HttpOptions } from '../client/call.ts'
import { httpTransport } from '../client/http.ts'
import type { Accepted } from '../client/transport.ts'
import type { SubmitRequest } from '../protocol/index.ts'
import type { Send } from './item.ts'

/**
 * Long enough for somebody who was cut off after a submission arrived and comes back after a holiday: as long as the
 * server knows the key, the same submission is the same job.
 */
const KEY_TTL_HOURS = 30 * 24

/** For an outbox of job submissions: sends them to a server. The outbox counts the tries, so each call is made once. */
export function sendJobs(options: HttpOptions): Send<SubmitRequest, Accepted> {
  const transport = httpTransport({ ...options, retry: { tries: 1 } })
  return ({ key, body }, signal) => transport.submit({ key_ttl_hours: KEY_TTL_HOURS, ...body }, { key, signal })
}
