import { page } from '../../contract/common.ts'
import { job, jobCounts, jobDetail, jobFilter, listJobsQuery, result, resultQuery } from '../../contract/jobs.ts'
import { jobFilterOf } from '../../services/jobs/job-filter.ts'
import { callerOf } from '../auth/auth.ts'
import { answers } from '../server/openapi.ts'
import { waitSignal } from '../server/streams.ts'
import { type ApiInstance, jobParams, listPage, type RouteContext } from './context.ts'

export function jobRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/jobs',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'List jobs, by age',
        description:
          'With `error_code`, `text` or `waiting_longer_than_seconds`, each call looks at a limited number of jobs. A page may ' +
          'then be short or empty. Continue until `next_cursor` is null.',
        querystring: listJobsQuery,
        response: answers({ 200: ['A page of jobs', page(job)] }),
      },
    },
    async (request) => {
      const { query } = request
      const filter = jobFilterOf(query)
      return listPage('jobs', query, (limit, after) =>
        services.jobs.list(callerOf(request), filter, limit, after, { order: query.order }),
      )
    },
  )

  app.get(
    '/v1/jobs/counts',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Count jobs by state',
        description: 'Takes the filter of the list. The server looks at up to 10,000 jobs in each state.',
        querystring: jobFilter,
        response: answers({ 200: ['The counts', jobCounts] }),
      },
    },
    (request) => services.jobs.countStates(callerOf(request), jobFilterOf(request.query)),
  )

  app.get(
    '/v1/jobs/:job_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Show a job with its runs',
        params: jobParams,
        response: answers({ 200: ['The job', jobDetail] }, 'NOT_FOUND'),
      },
    },
    (request) => services.jobs.get(callerOf(request), request.params.job_id),
  )

  app.post(
    '/v1/jobs/:job_id/cancel',
    {
      config: { ability: 'submit' },
      schema: {
        tags: ['jobs'],
        summary: 'Cancel a job',
        description:
          'A waiting job ends at once. A running job is asked to stop, and ends CANCELED when it has stopped.',
        params: jobParams,
        response: answers({ 200: ['The job', jobDetail] }, 'NOT_FOUND', 'ALREADY_ENDED'),
      },
    },
    async (request) => (await services.jobs.cancel(callerOf(request), request.params.job_id)).job,
  )
}

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
