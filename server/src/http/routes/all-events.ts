import { IchidoError } from '@ichido/sdk/protocol'
import { decodePlace, encodePlace, eventsOfAll, jobState, listEventsQuery } from '../../core/contract/events.ts'
import { FIRST_EVENT } from '../../store/commands/all-events.ts'
import { callerOf } from '../auth.ts'
import { answers } from '../openapi.ts'
import { type ApiInstance, jobParams, type RouteContext } from './context.ts'

/** The events of all jobs, and what the last ones of one job come to. */
export function allEventRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/jobs/:job_id/state',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Show how a job stands: its state, and its last events',
        params: jobParams,
        response: answers({ 200: ['The state and the last events', jobState] }, 'NOT_FOUND'),
      },
    },
    (request) => services.events.state(callerOf(request), request.params.job_id),
  )

  app.get(
    '/v1/events',
    {
      config: { ability: 'operate' },
      schema: {
        tags: ['events'],
        summary: 'List the events of all jobs, oldest first',
        description:
          'A list without an end: `next_cursor` is where to go on, also when `caught_up` says that there is no more yet. What commits late is not skipped. An answer may be short, or empty, before the list is caught up.',
        querystring: listEventsQuery,
        response: answers({ 200: ['A page of events', eventsOfAll] }),
      },
    },
    async (request) => {
      const { job_id = null, kind = null, queue = null, domain = null, stage = null, limit, cursor } = request.query
      const after = cursor === undefined ? FIRST_EVENT : decodePlace(cursor)
      const page = after && (await services.events.list({ jobId: job_id, kind, queue, domain, stage }, after, limit))
      if (page === null) {
        const message = 'cursor must be the next_cursor of an earlier answer of this list'
        throw new IchidoError('INVALID_PAYLOAD', message, { field: 'cursor' })
      }
      const { events, next, caughtUp } = page
      return { data: events.map(({ shape }) => shape), next_cursor: encodePlace(next), caught_up: caughtUp }
    },
  )
}
