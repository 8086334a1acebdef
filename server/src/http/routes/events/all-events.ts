import { IchidoError } from '@ichido/sdk/protocol'
import { sleep } from '@ichido/sdk/world'
import { z } from 'zod'
import { decodePlace, encodePlace, eventsOfAll, jobState, listEventsQuery } from '../../../contract/events.ts'
import type { EventFilter, EventList } from '../../../services/events/events.ts'
import { type EventPlace, FIRST_EVENT } from '../../../services/events/events.ts'
import { callerOf } from '../../auth/auth.ts'
import { preferredType, varyByAccept } from '../../server/accept.ts'
import { answers } from '../../server/openapi.ts'
import { SSE_TYPE, type SseEvent, sendEvents, streamSignal } from '../../streaming/sse.ts'
import { type ApiInstance, jobParams, type RouteContext } from '../context.ts'

const JSON_TYPE = 'application/json'
const POLL_MS = 1_000
const STREAM_PAGE_MAX = 100

const ANSWERS: Record<number, object> = {
  ...answers({}),
  200: {
    description: 'A page of events, or a stream',
    content: { [JSON_TYPE]: { schema: eventsOfAll }, [SSE_TYPE]: { schema: z.string() } },
  },
}

/** What the last events of a job come to. */
export function stateRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/jobs/:job_id/state',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Show the state and the last events of a job',
        params: jobParams,
        response: answers({ 200: ['The state and the last events', jobState] }, 'NOT_FOUND'),
      },
    },
    (request) => services.events.state(callerOf(request), request.params.job_id),
  )
}

/** The events of all jobs. */
export function allEventRoutes(app: ApiInstance, context: RouteContext): void {
  const { services } = context
  const { world } = services.deps
  const streaming = { ...context, world }

  async function pageAfter(
    field: string,
    filter: EventFilter,
    after: EventPlace | null,
    max: number,
  ): Promise<EventList> {
    const page = after && (await services.events.list(filter, after, max))
    if (page !== null) return page
    throw new IchidoError('INVALID_PAYLOAD', `${field} must be a cursor from an earlier answer of this list`, {
      field,
    })
  }

  app.get(
    '/v1/events',
    {
      // A HEAD would follow the events for nobody.
      exposeHeadRoute: false,
      config: { ability: 'operate' },
      schema: {
        tags: ['events'],
        summary: 'List the events of all jobs, oldest first, or follow them',
        description:
          'The list has no end: continue from `next_cursor`, even if `caught_up` says that there are no more events yet. Late ' +
          'commits are not skipped. An answer may be short or empty before the list is caught up. With ' +
          `\`Accept: ${SSE_TYPE}\` the events are streamed, from now on or after \`cursor\` or \`Last-Event-ID\`.`,
        querystring: listEventsQuery,
        response: ANSWERS,
      },
    },
    async (request, reply) => {
      const { job_id = null, kind = null, queue = null, domain = null, stage = null, limit, cursor } = request.query
      const filter = { jobId: job_id, kind, queue, domain, stage }
      varyByAccept(reply)
      if (preferredType(request.headers.accept, [JSON_TYPE, SSE_TYPE]) === JSON_TYPE) {
        const page = await pageAfter('cursor', filter, cursor === undefined ? FIRST_EVENT : decodePlace(cursor), limit)
        const { events, next, caughtUp } = page
        return { data: events.map(({ shape }) => shape), next_cursor: encodePlace(next), caught_up: caughtUp }
      }
      context.seats.logs.take(callerOf(request).userId, reply)
      const lastId = request.headers['last-event-id']
      const [field, from] = typeof lastId === 'string' && lastId !== '' ? ['Last-Event-ID', lastId] : ['cursor', cursor]
      const after = from === undefined ? await services.events.lastPlace() : decodePlace(from)
      const first = await pageAfter(field, filter, after, STREAM_PAGE_MAX)
      const signal = streamSignal(reply, streaming)
      const nextPage = (place: EventPlace) => pageAfter(field, filter, place, STREAM_PAGE_MAX)
      return sendEvents(
        reply,
        streaming,
        eventsOf(first, nextPage, () => sleep(world, POLL_MS, signal), signal),
      )
    },
  )
}

/** There is no wake-up for all jobs: operators can wait so long. */
async function* eventsOf(
  first: EventList,
  nextPage: (place: EventPlace) => Promise<EventList>,
  wait: () => Promise<void>,
  signal: AbortSignal,
): AsyncGenerator<SseEvent> {
  for (let page = first; ; page = await nextPage(page.next)) {
    for (const { place, shape } of page.events) yield { id: encodePlace(place), data: shape }
    // What the filter left out is not to be looked at again by who comes again.
    if (page.events.length === 0) yield { id: encodePlace(page.next) }
    if (page.caughtUp) await wait()
    if (signal.aborted) return
  }
}
