import { eventsQuery, resultQuery } from '../../core/contract/jobs.ts'
import { events, result } from '../../core/contract/shapes.ts'
import { callerOf } from '../auth.ts'
import { answers } from '../openapi.ts'
import { type ApiInstance, jobParams, type RouteContext, waitSignal } from './context.ts'

/** What a job has come to: both may hold the answer back until there is something to say. */
export function outcomeRoutes(app: ApiInstance, { services, draining }: RouteContext): void {
  app.get(
    '/v1/jobs/:job_id/result',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: "Show a job's result, or wait for it",
        params: jobParams,
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
        params: jobParams,
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
}
