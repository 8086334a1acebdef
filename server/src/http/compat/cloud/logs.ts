import type { RunLogShape } from '@ichido/sdk/protocol'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import type { LogStep } from '../../../services/logs/logs.ts'
import { callerOf } from '../../auth/auth.ts'
import { type ApiInstance, jobParams, type RouteContext } from '../../routes/context.ts'
import { JSON_TYPE } from '../../server/errors.ts'
import { SSE_TYPE, type SseEvent, sendEvents, sendParts } from '../../server/streams.ts'
import { cloudAnswers, followQuery, requireCloud, statusOfState } from './shapes.ts'

const tags = ['compat: cloud']
const PATH = '/api/cloud/jobs/:job_id/logs'
const FROM_THE_START = { after: null }
/** A longer line is cut in two. */
const LINE_LENGTH_MAX = 64 * 1024

const wholeLog = z.object({ job_id: z.uuid(), logs: z.string() }).meta({ id: 'CloudLogs' })
const STREAM = {
  description: 'An event for each line, then `done` with the status in which the job ended',
  content: { [SSE_TYPE]: { schema: z.string() } },
}

/** The log of a job in the form of SimpleTuner: one text, or an event for each line. */
export function cloudLogRoutes(api: ApiInstance, context: RouteContext): void {
  const { jobs, logs } = context.services

  function follow(request: FastifyRequest, reply: FastifyReply, jobId: string): Promise<FastifyReply> {
    return sendEvents(reply, context, async (signal) =>
      lineEvents(await logs.follow(callerOf(request), jobId, FROM_THE_START, signal)),
    )
  }

  /** Refuses a job that is not a cloud job of the caller, and takes a seat, because a log can be long. */
  async function open(request: FastifyRequest, reply: FastifyReply, jobId: string): Promise<void> {
    const caller = callerOf(request)
    requireCloud(await jobs.get(caller, jobId))
    context.seats.logs.take(caller.userId, reply)
  }

  api.get(
    PATH,
    {
      // A HEAD request would open a stream that no client reads.
      exposeHeadRoute: false,
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show the log of a cloud training job',
        description:
          'The answer has the output of all its runs so far. The text only grows, so a client may ask again and show the ' +
          'new part. With `follow=true`, the answer is the stream of `/logs/stream`.',
        params: jobParams,
        querystring: followQuery,
        response: {
          ...cloudAnswers({}, 'NOT_FOUND', 'LOG_UNAVAILABLE'),
          200: {
            description: 'The text; with `follow=true` an event for each line, then `done`',
            content: { 'application/json': { schema: wholeLog }, ...STREAM.content },
          },
        },
      },
    },
    async (request, reply) => {
      const { job_id: jobId } = request.params
      await open(request, reply, jobId)
      if (request.query.follow) return follow(request, reply, jobId)
      const chunks = await logs.readAll(callerOf(request), jobId, FROM_THE_START)
      return sendParts(reply, context, JSON_TYPE, asJson(jobId, chunks))
    },
  )

  api.get(
    `${PATH}/stream`,
    {
      exposeHeadRoute: false,
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Follow the log of a cloud training job',
        params: jobParams,
        response: { ...cloudAnswers({}, 'NOT_FOUND', 'LOG_UNAVAILABLE'), 200: STREAM },
      },
    },
    async (request, reply) => {
      const { job_id: jobId } = request.params
      await open(request, reply, jobId)
      return follow(request, reply, jobId)
    },
  )
}

/** The answer is sent in parts, because a log can have 10 MiB for each run. */
async function* asJson(jobId: string, chunks: AsyncIterable<RunLogShape>): AsyncGenerator<string> {
  yield `{"job_id":${JSON.stringify(jobId)},"logs":"`
  for await (const { text } of chunks) yield JSON.stringify(text).slice(1, -1)
  yield '"}'
}

/** A carriage return, as in progress bars, also ends a line, because an event cannot contain it. */
async function* lineEvents(steps: AsyncIterable<LogStep>): AsyncGenerator<SseEvent> {
  let rest = ''
  for await (const step of steps) {
    if (step.kind === 'end') {
      if (rest !== '') yield { line: rest }
      yield { event: 'done', line: statusOfState(step.state) }
      return
    }
    // A carriage return at the end waits for the next chunk, which may begin with its line feed.
    const lines = (rest + step.chunk.text).split(/\r\n|\n|\r(?!$)/)
    rest = lines.pop() ?? ''
    for (const line of lines) yield { line }
    if (rest.length > LINE_LENGTH_MAX) {
      yield { line: rest }
      rest = ''
    }
  }
}
