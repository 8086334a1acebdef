import { result } from '../../../contract/common/shapes.ts'
import { resultQuery } from '../../../contract/jobs.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers } from '../../server/openapi.ts'
import { type ApiInstance, jobParams, type RouteContext, waitSignal } from '../context.ts'

/** What a job has come to; the answer may be held back until there is something to say. */
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
}
