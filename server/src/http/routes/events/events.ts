import { IchidoError, type StreamTokenShape } from '@ichido/sdk/protocol'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { events } from '../../../contract/common/shapes.ts'
import { eventsQuery } from '../../../contract/jobs.ts'
import type { FeedBeginning, FeedOpening } from '../../../services/events/feeds.ts'
import { callerOf } from '../../auth/auth.ts'
import { sentToken } from '../../auth/credentials.ts'
import { preferredType, varyByAccept } from '../../server/accept.ts'
import { answers } from '../../server/openapi.ts'
import { openSink, SSE_TYPE } from '../../streaming/sse.ts'
import type { StreamContext } from '../../streaming/stream.ts'
import { type ApiInstance, jobParams, type RouteContext, waitSignal } from '../context.ts'

const JSON_TYPE = 'application/json'
const CURSOR = /^\d{1,15}$/

const streamToken = z
  .object({ token: z.string(), expires_at: z.iso.datetime() })
  .meta({ id: 'StreamToken' }) satisfies z.ZodType<StreamTokenShape>

const ANSWERS: Record<number, object> = {
  ...answers({ 204: ['The job has ended, and all its events were sent'] }, 'NOT_FOUND'),
  200: {
    description: 'The events, in order',
    content: { [JSON_TYPE]: { schema: events }, [SSE_TYPE]: { schema: z.string() } },
  },
}

export function eventRoutes(app: ApiInstance, context: RouteContext): void {
  const { services, feeds, draining } = context
  const streaming = { ...context, world: services.deps.world }

  app.get(
    '/v1/jobs/:job_id/events',
    {
      // A HEAD would follow the events for nobody.
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
        response: ANSWERS,
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
      // For an EventSource this, and nothing else, is the end.
      if (opening.over && resumed !== null) return reply.code(204).send()
      reply.raw.once('timeout', () => services.deps.meter.streamBroken('dropped'))
      return stream(reply, streaming, opening)
    },
  )
}

/** BlockedUsers from the streams: a node may have these and not those. */
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
    async (request, reply) =>
      reply
        .code(201)
        .header('cache-control', 'no-store')
        .send(await services.streamTokens.create(callerOf(request), request.params.job_id, sentToken(request.headers))),
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

/** A stream that broke off goes on where it was, wherever it had begun. */
function lastEventId({ headers }: EventsRequest): number | null {
  const id = headers['last-event-id']
  if (id === undefined || id === '') return null
  if (typeof id === 'string' && CURSOR.test(id)) return Number(id)
  throw new IchidoError('INVALID_PAYLOAD', 'Last-Event-ID must be the id of an event of this stream', {
    field: 'Last-Event-ID',
  })
}
