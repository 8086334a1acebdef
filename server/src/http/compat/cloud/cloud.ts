import { IchidoError, type JobShape } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Caller } from '../../../core/limits/roles.ts'
import { type DeleteRefusal, EVERY_JOB, type JobFilter } from '../../../services/jobs/jobs.ts'
import { callerOf } from '../../auth/auth.ts'
import { type ApiInstance, jobParams, listPage, type RouteContext } from '../../routes/context.ts'
import { keyOf } from '../../routes/submit.ts'
import { bodyBytesFor } from '../../server/body-limits.ts'
import { WITH_BODY } from '../../server/openapi.ts'
import { cloudLogRoutes } from './logs.ts'
import { type CloudMetricsOptions, cloudMetricRoutes } from './metrics.ts'
import {
  type CloudJob,
  COUNTED_MAX,
  cancelAnswer,
  cloudAnswer,
  cloudAnswers,
  cloudJob,
  cloudJobs,
  cloudStatus,
  deleteAnswer,
  jobsWith,
  KIND,
  listCloudQuery,
  PROVIDER_LABEL,
  renderJob,
  requireCloud,
  statusOfState,
  submitBody,
  submitQuery,
} from './shapes.ts'
import { submitCloud } from './submit.ts'

export const CLOUD_PATH = '/api/cloud'
const JOBS = `${CLOUD_PATH}/jobs`

const tags = ['compat: cloud']

/**
 * The wire contract of S0. Its clients call `curl -sf` and read the body, so a refusal is a 200 with `success: false`.
 */
export async function cloudRoutes(app: FastifyInstance, context: RouteContext & CloudMetricsOptions): Promise<void> {
  const api = app.withTypeProvider<ZodTypeProvider>()
  submitRoute(api, context)
  readRoutes(api, context)
  changeRoutes(api, context)
  cloudLogRoutes(api, context)
  cloudMetricRoutes(api, context)
}

function submitRoute(api: ApiInstance, { services }: RouteContext): void {
  api.post(
    `${JOBS}/submit`,
    {
      bodyLimit: bodyBytesFor(services.deps.limits.payloadBytesMax),
      config: { ability: 'submit', takesKey: true },
      schema: {
        tags,
        summary: 'Submit a cloud training job',
        description:
          'A refusal because of a quota, cost limit, reservation or key is answered with 200, `success: false` and ' +
          '`error`. A key stands for the provider and the config name only, or for the config itself if it has no name. ' +
          'With `dry_run`, the answer is the one that a submission would get now, and no job is made.',
        querystring: submitQuery,
        body: submitBody,
        response: cloudAnswers({ 200: ['Accepted, matched or refused', cloudAnswer] }, 'KEY_CONFLICT', ...WITH_BODY),
      },
    },
    (request) => {
      const { body, query } = request
      const { idempotency_key } = body
      const key = keyOf(request.raw, idempotency_key == null ? {} : { idempotency_key })
      const dryRun = query.dry_run === true || body.dry_run === true
      return submitCloud(services, callerOf(request), { provider: query.provider, body, key, dryRun })
    },
  )
}

function readRoutes(api: ApiInstance, { services: { jobs, deps } }: RouteContext): void {
  async function render(listed: readonly JobShape[]): Promise<CloudJob[]> {
    const costs = await jobs.reportedCosts(listed.map((job) => job.job_id))
    return listed.map((job) => renderJob(job, costs.get(job.job_id), deps.world.now()))
  }

  api.get(
    JOBS,
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'List cloud training jobs, newest first',
        querystring: listCloudQuery,
        response: cloudAnswers({ 200: ['A page of jobs', cloudJobs] }),
      },
    },
    async (request) => {
      const { provider, status, job_type, offset, cursor } = request.query
      if (offset > 0 && cursor !== undefined) {
        const message = 'offset and cursor exclude each other; send one of them'
        throw new IchidoError('INVALID_PAYLOAD', message, { field: 'offset' })
      }
      if (job_type === 'local') return { jobs: [], total: 0, total_capped: false, next_cursor: null }
      const caller = callerOf(request)
      const label = provider === undefined ? null : { name: PROVIDER_LABEL, value: provider }
      const filter: JobFilter = { ...EVERY_JOB, ...jobsWith(status), kind: KIND, label }
      const { data, next_cursor } = await listPage('cloud', request.query, (limit, after) =>
        jobs.list(caller, filter, limit, after, { offset }),
      )
      const isLast = cursor === undefined && next_cursor === null && (data.length > 0 || offset === 0)
      const total = isLast ? offset + data.length : await jobs.count(caller, filter, COUNTED_MAX + 1)
      // The store has selected the jobs by its own clock, so all of them have this status.
      const shown = (await render(data)).map((job) => (status === undefined ? job : { ...job, status }))
      const total_capped = total > COUNTED_MAX
      return { jobs: shown, total: Math.min(total, COUNTED_MAX), total_capped, next_cursor }
    },
  )

  api.get(
    `${JOBS}/:job_id`,
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a cloud training job',
        params: jobParams,
        response: cloudAnswers({ 200: ['The job', z.object({ job: cloudJob })] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const [job] = await render([requireCloud(await jobs.get(callerOf(request), request.params.job_id))])
      return { job }
    },
  )
}

function changeRoutes(api: ApiInstance, { services: { jobs, deps } }: RouteContext): void {
  const find = async (caller: Caller, jobId: string) => requireCloud(await jobs.get(caller, jobId))

  api.post(
    `${JOBS}/:job_id/cancel`,
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Cancel a cloud training job',
        description: 'A running job is asked to stop, and is `cancelled` when it has stopped.',
        params: jobParams,
        response: cloudAnswers({ 200: ['Canceled, asked to stop, or ended before', cancelAnswer] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const caller = callerOf(request)
      const { job_id } = request.params
      await find(caller, job_id)
      const statusOf = (job: JobShape) => cloudStatus(job, deps.world.now())
      try {
        const { job } = await jobs.cancel(caller, job_id)
        return { success: true, job_id, status: statusOf(job), error: null }
      } catch (error) {
        if (!(error instanceof IchidoError) || error.code !== 'ALREADY_ENDED') throw error
        return { success: false, job_id, status: statusOf(await jobs.get(caller, job_id)), error: error.message }
      }
    },
  )

  api.delete(
    `${JOBS}/:job_id`,
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Delete a cloud training job that has ended, with its logs, events and files',
        description:
          'The key of the job stays and still names it. A job that has not ended is refused: cancel it first.',
        params: jobParams,
        response: cloudAnswers({ 200: ['Deleted, or refused', deleteAnswer] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const caller = callerOf(request)
      const { job_id } = request.params
      await find(caller, job_id)
      const outcome = await jobs.delete(caller, job_id)
      if (outcome === 'deleted') return { success: true, job_id, error: null }
      return { success: false, job_id, error: whyNotDeleted(job_id, outcome) }
    },
  )
}

function whyNotDeleted(jobId: string, refusal: DeleteRefusal): string {
  switch (refusal.reason) {
    case 'NOT_FOUND':
      throw new IchidoError('NOT_FOUND', `There is no cloud job ${jobId}`)
    case 'NOT_ENDED':
      return `Job ${jobId} is ${statusOfState(refusal.state)}; only a job that has ended can be deleted, so cancel it first`
    case 'REPLACES':
      return `Job ${jobId} took the place of job ${refusal.jobId}; delete that one first`
    case 'IN_REDRIVE':
      return `Job ${jobId} is part of a redrive; delete it when that has ended`
  }
}
