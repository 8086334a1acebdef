import type { JobFilterInput } from '../../contract/jobs.ts'
import type { JobFilter } from '../../store/jobs/list-jobs.ts'

/** The filter of a query, for the route and the library. It names each field, so that none is forgotten. */
export function jobFilterOf(query: JobFilterInput): JobFilter {
  return {
    states: query.state ?? [],
    pendingFor: null,
    userId: query.user_id ?? null,
    queue: query.queue ?? null,
    kind: query.kind ?? null,
    label: query.label ?? null,
    key: query.key ?? null,
    shortId: query.short_id ?? null,
    errorCode: query.error_code ?? null,
    text: query.text ?? null,
    waitingLongerThanMs:
      query.waiting_longer_than_seconds === undefined ? null : Math.round(query.waiting_longer_than_seconds * 1000),
    createdFromMs: query.created_after ?? null,
    createdToMs: query.created_before ?? null,
  }
}
