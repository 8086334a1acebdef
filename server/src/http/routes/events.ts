import { IchidoError, type StreamTokenShape } from '@ichido/sdk/protocol'
import { sleep } from '@ichido/sdk/world'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { decodePlace, encodePlace, events, eventsOfAll, jobState, listEventsQuery } from '../../contract/events.ts'
import { eventsQuery } from '../../contract/jobs.ts'
import { type EventFilter, type EventList, type EventPlace, FIRST_EVENT } from '../../services/events/events.ts'
import type { FeedBeginning, FeedOpening } from '../../services/events/feeds.ts'
import { callerOf, sentToken } from '../auth/auth.ts'
import { preferredType, varyByAccept } from '../server/headers.ts'
import { answers } from '../server/openapi.ts'
import { openSink, SSE_TYPE, type SseEvent, type StreamContext, sendEvents, waitSignal } from '../server/streams.ts'
import { type ApiInstance, jobParams, type RouteContext } from './context.ts'

const JSON_TYPE = 'application/json'
const CURSOR = /^\d{1,15}$/
/** No wake-up covers all jobs, so a stream of all events polls the store. */
const POLL_MS = 1_000
const STREAM_PAGE_MAX = 100
const NO_STREAM_TOKEN = 'A session cannot make stream tokens and needs none: its cookie opens the events of the job'

const streamToken = z
  .object({ token: z.string(), expires_at: z.iso.datetime() })
  .meta({ id: 'StreamToken' }) satisfies z.ZodType<StreamTokenShape>

const JOB_ANSWERS: Record<number, object> = {
  ...answers({ 204: ['The job has ended, and all its events were sent'] }, 'NOT_FOUND'),
  200: {
    description: 'The events, in order',
    content: { [JSON_TYPE]: { schema: events }, [SSE_TYPE]: { schema: z.string() } },
  },
}

const ALL_ANSWERS: Record<number, object> = {
  ...answers({}),
  200: {
    description: 'A page of events, or a stream',
    content: { [JSON_TYPE]: { schema: eventsOfAll }, [SSE_TYPE]: { schema: z.string() } },
  },
}

export function eventRoutes(app: ApiInstance, context: RouteContext): void {
  const { services, feeds, draining } = context

  app.get(
    '/v1/jobs/:job_id/events',
    {
      // A HEAD request would open a stream that no client reads.
      exposeHeadRoute: false,
      config: { ability: 'readOwn', streamTokens: true },
      schema: {
        tags: ['jobs'],
        summary: "List a job's events after a cursor, or follow them",
        description:
          `\`Accept\` sets the form. \`${JSON_TYPE}\` returns a page of up to 1,000 events and about 4 MiB; continue after the ` +
          `last one until \`ended\` is true. \`${SSE_TYPE}\` streams the events: each is a \`message\` whose id is its cursor. ` +
          'The stream sends `reset`, with the latest state, if the events after the requested position are no longer kept, ' +
          'and `end` when the job has ended and everything was sent. It continues after `Last-Event-ID`, and answers 204 ' +
          'when no event can come any more.',
        params: jobParams,
        querystring: eventsQuery,
        response: JOB_ANSWERS,
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const { job_id: jobId } = request.params
      const type = preferredType(request.headers.accept, [JSON_TYPE, SSE_TYPE])
      varyByAccept(reply)
      const beginning = beginningOf(request)
      if (type === JSON_TYPE) {
        const after =
          'after' in beginning ? beginning.after : await services.events.cursorOfSeq(jobId, beginning.lastSeq)
        const waitMs = request.query.wait_seconds * 1000
        return services.events.read(caller, jobId, after, waitMs, waitSignal(reply, draining))
      }
      const resumed = lastEventId(request)
      context.seats.events.take(caller.userId, reply)
      const opening = await feeds.open(caller, jobId, resumed === null ? beginning : { after: resumed })
      // Only this status stops an EventSource from connecting again.
      if (opening.over && resumed !== null) return reply.code(204).send()
      reply.raw.once('timeout', () => services.deps.meter.streamBroken('dropped'))
      return stream(reply, context, opening)
    },
  )
}

/** These routes are apart from the streams, because a node may serve only one of the two. */
export function streamTokenRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.post(
    '/v1/jobs/:job_id/stream-token',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: "Make a short-lived token for one job's events",
        description:
          'Use it for an EventSource in a browser, which sends no headers: `?stream_token=…`. It works at every node, and ' +
          'ends with the API token that asked for it. In open mode it works only at the node that made it.',
        params: jobParams,
        response: answers({ 201: ['The token', streamToken] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => {
      // Only the API token itself can sign.
      if (request.session !== null) throw new IchidoError('FORBIDDEN', NO_STREAM_TOKEN)
      return reply
        .code(201)
        .send(await services.streamTokens.create(callerOf(request), request.params.job_id, sentToken(request.headers)))
    },
  )
}

function stream(reply: FastifyReply, context: StreamContext, opening: FeedOpening): FastifyReply {
  const { raw } = reply
  const subscriber = opening.subscribe(openSink(reply, context))
  raw.on('drain', () => subscriber.drained())
  raw.once('close', () => subscriber.close())
  return reply
}

type EventsRequest = Pick<FastifyRequest, 'headers'> & { query: z.output<typeof eventsQuery> }

function beginningOf({ query: { after, last_seq } }: EventsRequest): FeedBeginning {
  if (after !== undefined && last_seq !== undefined) {
    throw new IchidoError('INVALID_PAYLOAD', 'after and last_seq exclude each other; send one of them', {
      field: 'last_seq',
    })
  }
  return last_seq === undefined ? { after: after ?? 0 } : { lastSeq: last_seq }
}

/** A client that connects again continues after the last event that it got. */
function lastEventId({ headers }: EventsRequest): number | null {
  const id = headers['last-event-id']
  if (id === undefined || id === '') return null
  if (typeof id === 'string' && CURSOR.test(id)) return Number(id)
  throw new IchidoError('INVALID_PAYLOAD', 'Last-Event-ID must be the id of an event of this stream', {
    field: 'Last-Event-ID',
  })
}

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

export function allEventRoutes(app: ApiInstance, context: RouteContext): void {
  const { services } = context

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
      // A HEAD request would open a stream that no client reads.
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
        response: ALL_ANSWERS,
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
      const nextPage = (place: EventPlace | null) => pageAfter(field, filter, place, STREAM_PAGE_MAX)
      return sendEvents(reply, context, async (signal) => {
        const wait = () => sleep(context.world, POLL_MS, signal)
        return eventsOf(await nextPage(after), nextPage, wait, signal)
      })
    },
  )
}

async function* eventsOf(
  first: EventList,
  nextPage: (place: EventPlace) => Promise<EventList>,
  wait: () => Promise<void>,
  signal: AbortSignal,
): AsyncGenerator<SseEvent> {
  for (let page = first; ; page = await nextPage(page.next)) {
    for (const { place, shape } of page.events) yield { id: encodePlace(place), data: shape }
    // The id keeps a client that connects again from reading the filtered events again.
    if (page.events.length === 0) yield { id: encodePlace(page.next) }
    if (page.caughtUp) await wait()
    if (signal.aborted) return
  }
}
