import { IchidoError, type JobShape, type SubmitResponse } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { SubmitInput } from '../../core/contract/submit.ts'
import type { Caller } from '../../core/roles.ts'
import type { Services } from '../../services/index.ts'
import { EVERY_JOB } from '../../store/commands/list-jobs.ts'
import { callerOf } from '../auth.ts'
import { answers, WITH_BODY } from '../openapi.ts'
import { cursorIn, cursorOut } from '../routes/context.ts'
import { keyOf } from '../submit-key.ts'
import {
  type CloudAnswer,
  type CloudJob,
  type CloudSubmit,
  cancelAnswer,
  cloudAnswer,
  cloudJob,
  cloudStatus,
  listCloudQuery,
  statesOf,
  submitBody,
  submitQuery,
} from './cloud-shapes.ts'

const KIND = 'cloud.train'
const OPERATION = 'cloud.submit'
const LIST = 'cloud'
/** Lists show labels, not payloads. */
const PROVIDER_LABEL = 'cloud.provider'
const CONFIG_LABEL = 'cloud.config'

const tags = ['compat: cloud']
const params = z.object({ job_id: z.uuid().toLowerCase() })

/** S0's own wire contract: its clients call `curl -sf` and read the body, so a refusal is a 200 that says so. */
export async function cloudRoutes(app: FastifyInstance, { services }: { services: Services }): Promise<void> {
  const { jobs, deps } = services
  const api = app.withTypeProvider<ZodTypeProvider>()
  const render = (job: JobShape) => renderJob(job, deps.world.now())

  api.post(
    '/api/cloud/jobs/submit',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Submit a cloud training job',
        description:
          'A quota, cost limit, reservation or key that stands against it is answered with 200, `success: false` and ' +
          '`error`. A key stands for provider and config name only.',
        querystring: submitQuery,
        body: submitBody,
        response: answers({ 200: ['Accepted, matched or refused', cloudAnswer] }, 'KEY_CONFLICT', ...WITH_BODY),
      },
    },
    (request) => {
      const { idempotency_key } = request.body
      const key = keyOf(request.raw, idempotency_key == null ? {} : { idempotency_key })
      return submit(services, callerOf(request), request.query.provider, request.body, key)
    },
  )

  api.get(
    '/api/cloud/jobs',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'List cloud training jobs, newest first',
        querystring: listCloudQuery,
        response: answers({ 200: ['A page of jobs', cloudJobs] }),
      },
    },
    async (request) => {
      const { provider, status, limit, cursor } = request.query
      const states = status === undefined ? [] : statesOf(status)
      const label = provider === undefined ? null : { name: PROVIDER_LABEL, value: provider }
      const filter = { ...EVERY_CLOUD_JOB, states, label }
      const page = cursorOut(LIST, await jobs.list(callerOf(request), filter, limit, cursorIn(LIST, cursor)))
      const found = page.data.map(render).filter((job) => status === undefined || job.status === status)
      return { jobs: found, total: found.length, next_cursor: page.next_cursor }
    },
  )

  api.get(
    '/api/cloud/jobs/:job_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a cloud training job',
        params,
        response: answers({ 200: ['The job', z.object({ job: cloudJob })] }, 'NOT_FOUND'),
      },
    },
    async (request) => ({ job: render(await cloudJobOf(callerOf(request), request.params.job_id)) }),
  )

  api.post(
    '/api/cloud/jobs/:job_id/cancel',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Cancel a cloud training job',
        description: 'One that is running is asked to stop, and is `cancelled` when it has.',
        params,
        response: answers({ 200: ['Canceled, asked to stop, or ended before', cancelAnswer] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const caller = callerOf(request)
      const { job_id } = request.params
      await cloudJobOf(caller, job_id)
      try {
        const { job } = await jobs.cancel(caller, job_id)
        return { success: true, job_id, status: render(job).status, error: null }
      } catch (error) {
        if (!(error instanceof IchidoError) || error.code !== 'ALREADY_ENDED') throw error
        return { success: false, job_id, status: render(await jobs.get(caller, job_id)).status, error: error.message }
      }
    },
  )

  async function cloudJobOf(caller: Caller, jobId: string): Promise<JobShape> {
    const job = await jobs.get(caller, jobId)
    if (job.kind !== KIND) throw new IchidoError('NOT_FOUND', `There is no cloud job ${jobId}`)
    return job
  }
}

const cloudJobs = z.object({ jobs: z.array(cloudJob), total: z.int(), next_cursor: z.string().nullable() })

const EVERY_CLOUD_JOB = { ...EVERY_JOB, kind: KIND }

async function submit(
  services: Services,
  caller: Caller,
  provider: string,
  body: CloudSubmit,
  key: string | null,
): Promise<CloudAnswer> {
  const { config_name_to_load: config } = body
  const found = await services.definitions.find(config)
  // Whoever may submit sees what it is lent: of other jobs' definitions that is nobody's business here.
  const definition = found?.kind === KIND ? found : null
  const input = toInput(provider, body, definition?.queue ?? `cloud.${provider}`, definition?.payload)
  const outcome = await services.submission.submit(caller, input, {
    key,
    operation: OPERATION,
    // S0's CI example sends another tracker_run_name under the same key, and means the same job.
    hashOver: { provider, config },
    // One that the caller brings is consumed by the job; otherwise S0's row is written beside it.
    consumedReservation: input.reservation_id === undefined,
    policy: definition?.policy ?? {},
    ...(definition === null ? {} : { definitionId: definition.definitionId }),
  })
  if (outcome.kind === 'refused') return { ...REFUSED, error: outcome.refusal.message }
  const first = JSON.parse(outcome.body) as SubmitResponse
  const replayed = outcome.kind === 'replayed'
  // Without artifacts nothing can be outstanding, and a first answer has nothing to ask for.
  const job = replayed || input.artifacts ? await whatIsKept(services.jobs, caller, outcome.jobId) : null
  return {
    success: true,
    job_id: outcome.jobId,
    status: replayed ? job && cloudStatus(job, services.deps.world.now()) : 'uploading',
    data_uploaded: !job?.awaits_artifacts,
    idempotent_hit: replayed,
    quota_warnings: first.quota_warnings,
    cost_limit_warning: first.cost_limit_warning,
    error: null,
  }
}

/** A key may outlive what is kept of its job. */
async function whatIsKept(jobs: Services['jobs'], caller: Caller, jobId: string): Promise<JobShape | null> {
  try {
    return await jobs.get(caller, jobId)
  } catch (error) {
    if (error instanceof IchidoError && error.code === 'NOT_FOUND') return null
    throw error
  }
}

const REFUSED: Omit<CloudAnswer, 'error'> = {
  success: false,
  job_id: null,
  status: null,
  data_uploaded: false,
  idempotent_hit: false,
  quota_warnings: [],
  cost_limit_warning: null,
}

function toInput(provider: string, body: CloudSubmit, queue: string, lent: unknown): SubmitInput {
  const { idempotency_key, estimated_cost, reservation_id, key_ttl_hours, artifacts, upload_ttl_seconds, ...rest } =
    body
  const said = Object.entries(rest).filter(([name, value]) => value !== null || !Object.hasOwn(submitBody.shape, name))
  return {
    kind: KIND,
    queue,
    payload: { ...(isObject(lent) ? lent : {}), ...Object.fromEntries(said), provider },
    labels: { [PROVIDER_LABEL]: provider, [CONFIG_LABEL]: body.config_name_to_load },
    estimated_cost: estimated_cost ?? undefined,
    reservation_id: reservation_id ?? undefined,
    key_ttl_hours: key_ttl_hours ?? undefined,
    artifacts: artifacts ?? undefined,
    upload_ttl_seconds: upload_ttl_seconds ?? undefined,
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function renderJob(job: JobShape, nowMs: number): CloudJob {
  return {
    job_id: job.job_id,
    job_type: 'cloud',
    provider: job.labels[PROVIDER_LABEL] ?? null,
    config_name: job.labels[CONFIG_LABEL] ?? null,
    status: cloudStatus(job, nowMs),
    user_id: job.user_id,
    created_at: job.created_at,
    queued_at: job.run_at,
    started_at: job.started_at,
    completed_at: job.finished_at,
    error_message: job.error?.message ?? null,
  }
}
