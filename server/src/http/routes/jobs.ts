import { z } from 'zod'
import { eventsQuery, listJobsQuery, resultQuery } from '../../core/contract/jobs.ts'
import { events, job, jobDetail, page, result } from '../../core/contract/shapes.ts'
import { callerOf } from '../auth.ts'
import { answers } from '../openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext, waitSignal } from './context.ts'

const LIST = 'jobs'
const params = z.object({ job_id: z.uuid().toLowerCase() })

export function jobRoutes(app: ApiInstance, { services, draining }: RouteContext): void {
  app.get(
    '/v1/jobs',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'List jobs, newest first',
        querystring: listJobsQuery,
        response: answers({ 200: ['A page of jobs', page(job)] }),
      },
    },
    async (request) => {
      const { query } = request
      const filter = {
        states: query.state ?? [],
        userId: query.user_id ?? null,
        queue: query.queue ?? null,
        kind: query.kind ?? null,
        label: query.label ?? null,
        key: query.key ?? null,
        createdFromMs: query.created_after ?? null,
        createdToMs: query.created_before ?? null,
      }
      const cursor = cursorIn(LIST, query.cursor)
      return cursorOut(LIST, await services.jobs.list(callerOf(request), filter, query.limit, cursor))
    },
  )

  app.get(
    '/v1/jobs/:job_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Show a job with its runs',
        params,
        response: answers({ 200: ['The job', jobDetail] }, 'NOT_FOUND'),
      },
    },
    (request) => services.jobs.get(callerOf(request), request.params.job_id),
  )

  app.get(
    '/v1/jobs/:job_id/result',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: "Show a job's result, or wait for it",
        params,
        querystring: resultQuery,
        response: answers({ 200: ['The result', result] }, 'NOT_FOUND', 'RESULT_NOT_READY', 'JOB_FAILED'),
      },
    },
    (request, reply) => {
      const waitMs = request.query.wait_seconds * 1000
      return services.jobs.result(callerOf(request), request.params.job_id, waitMs, waitSignal(reply, draining))
    },
  )

  app.get(
    '/v1/jobs/:job_id/events',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: "List a job's events after a cursor, or wait for the next one",
        params,
        querystring: eventsQuery,
        response: answers({ 200: ['The events, in their order', events] }, 'NOT_FOUND'),
      },
    },
    (request, reply) => {
      const { after, wait_seconds } = request.query
      const signal = waitSignal(reply, draining)
      return services.events.read(callerOf(request), request.params.job_id, after, wait_seconds * 1000, signal)
    },
  )

  app.post(
    '/v1/jobs/:job_id/cancel',
    {
      config: { ability: 'submit' },
      schema: {
        tags: ['jobs'],
        summary: 'Cancel a job',
        description: 'A job that is running is asked to stop, and ends CANCELED when it has.',
        params,
        response: answers({ 200: ['The job as it is now', jobDetail] }, 'NOT_FOUND', 'ALREADY_ENDED'),
      },
    },
    async (request) => (await services.jobs.cancel(callerOf(request), request.params.job_id)).job,
  )
}
