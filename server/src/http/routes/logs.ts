import { IchidoError, type RunLogShape } from '@ichido/sdk/protocol'
import type { FastifyRequest } from 'fastify'
import { z } from 'zod'
import { listQuery, page } from '../../contract/common.ts'
import { LOG_STREAMS } from '../../core/run/run-state.ts'
import { cursorOf, type LogBeginning, type LogStep } from '../../services/logs/logs.ts'
import { callerOf } from '../auth/auth.ts'
import { preferredType, varyByAccept } from '../server/headers.ts'
import { answers } from '../server/openapi.ts'
import { SSE_TYPE, type SseEvent, sendEvents, sendParts } from '../server/streams.ts'
import { type ApiInstance, jobParams, type RouteContext } from './context.ts'

const chunk = z
  .object({
    run_id: z.uuid(),
    run_no: z.int(),
    n: z.int(),
    stream: z.enum(LOG_STREAMS),
    text: z.string(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'LogChunk' }) satisfies z.ZodType<RunLogShape>

const TAIL_MAX = 10_000
const logsQuery = z.strictObject({
  ...listQuery,
  tail: z.coerce
    .number()
    .int()
    .min(1)
    .max(TAIL_MAX)
    .optional()
    .meta({ description: 'Begin with this many last lines, or fewer if they have more than 1 MiB' }),
})

const JSON_TYPE = 'application/json'
const TEXT_TYPE = 'text/plain'
const PLACE = /^\d{1,9}\.\d{1,10}$/

export function logRoutes(app: ApiInstance, context: RouteContext): void {
  const { logs } = context.services

  app.get(
    '/v1/jobs/:job_id/logs',
    {
      // A HEAD request would open a stream that no client reads.
      exposeHeadRoute: false,
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Read the log of a job, oldest first',
        description:
          `\`Accept\` sets the form: a page of chunks (\`${JSON_TYPE}\`), the whole log so far (\`${TEXT_TYPE}\`), or a stream ` +
          `(\`${SSE_TYPE}\`). The stream sends each chunk as a \`log\` event, and \`end\` when the job has ended and everything ` +
          'was sent. It continues after `Last-Event-ID`. Archived logs are read in the same way.',
        params: jobParams,
        querystring: logsQuery,
        response: {
          ...answers({}, 'NOT_FOUND', 'LOG_UNAVAILABLE'),
          200: {
            description: 'A page of the log, the whole log, or a stream',
            content: {
              [JSON_TYPE]: { schema: page(chunk) },
              [TEXT_TYPE]: { schema: z.string() },
              [SSE_TYPE]: { schema: z.string() },
            },
          },
        },
      },
    },
    async (request, reply) => {
      const caller = callerOf(request)
      const { job_id: jobId } = request.params
      const type = preferredType(request.headers.accept, [JSON_TYPE, TEXT_TYPE, SSE_TYPE])
      const beginning = beginningOf(request, type === SSE_TYPE)
      varyByAccept(reply)
      if (type === JSON_TYPE) return logs.read(caller, jobId, beginning, request.query.limit)
      context.seats.logs.take(caller.userId, reply)
      if (type === TEXT_TYPE) {
        const chunks = await logs.readAll(caller, jobId, beginning)
        return sendParts(reply, context, `${TEXT_TYPE}; charset=utf-8`, texts(chunks))
      }
      return sendEvents(reply, context, async (signal) => events(await logs.follow(caller, jobId, beginning, signal)))
    },
  )
}

type LogsRequest = Pick<FastifyRequest, 'headers'> & { query: z.output<typeof logsQuery> }

/** A client that connects again continues after the last event that it got. */
function beginningOf({ headers, query: { cursor, tail } }: LogsRequest, isStream: boolean): LogBeginning {
  const lastId = isStream ? headers['last-event-id'] : undefined
  if (typeof lastId === 'string' && lastId !== '') return { after: place('Last-Event-ID', lastId) }
  if (tail !== undefined && cursor !== undefined) {
    throw new IchidoError('INVALID_PAYLOAD', 'tail and cursor exclude each other; send one of them', {
      field: 'tail',
    })
  }
  if (tail !== undefined) return { tail }
  return { after: cursor === undefined ? null : place('cursor', cursor) }
}

function place(field: string, text: string): string {
  if (PLACE.test(text)) return text
  throw new IchidoError('INVALID_PAYLOAD', `${field} must be a cursor from an earlier answer of this log`, {
    field,
  })
}

async function* texts(chunks: AsyncIterable<RunLogShape>): AsyncGenerator<string> {
  for await (const { text } of chunks) yield text
}

async function* events(steps: AsyncIterable<LogStep>): AsyncGenerator<SseEvent> {
  for await (const step of steps) {
    if (step.kind === 'end') yield { event: 'end', data: { state: step.state } }
    else yield { event: 'log', id: cursorOf(step.chunk), data: step.chunk }
  }
}
