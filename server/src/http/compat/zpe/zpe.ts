import { IchidoError, type JobDetail } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import type { Caller } from '../../../core/limits/roles.ts'
import type { JobPolicy } from '../../../core/run/job.ts'
import type { Services } from '../../../services/index.ts'
import { refusalError } from '../../../services/submission/submit-job.ts'
import { callerOf } from '../../auth/auth.ts'
import { type ApiInstance, jobParams } from '../../routes/context.ts'
import { keyOf } from '../../routes/submit.ts'
import { bodyBytesFor } from '../../server/body-limits.ts'
import type { MismatchStatus } from '../../server/errors.ts'
import { attachment } from '../../server/headers.ts'
import { answers, errorAnswer, WITH_BODY } from '../../server/openapi.ts'
import { zpeComputeRoutes } from './compute.ts'
import { filesQuery, renderState, ZPE, zpeAccepted, zpeJob, zpeResult, zpeState } from './shapes.ts'

const OPERATION = 'zpe.submit'
const CONFLICTS = ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED'] as const

const tags = ['compat: zpe']

interface ZpeContext {
  services: Services
  mismatchStatus: MismatchStatus
}

/** The wire contract of S1: the routes of its front end are here, and those of its workers in compute.ts. */
export async function zpeRoutes(app: FastifyInstance, context: ZpeContext): Promise<void> {
  const api = app.withTypeProvider<ZodTypeProvider>()
  submitRoute(api, context)
  readRoutes(api, context.services)
  await app.register(zpeComputeRoutes, context)
}

function submitRoute(app: ApiInstance, { services, mismatchStatus }: ZpeContext): void {
  app.post(
    '/calc/zpe/jobs',
    {
      bodyLimit: bodyBytesFor(services.deps.limits.payloadBytesMax),
      config: { ability: 'submit', takesKey: true },
      schema: {
        tags,
        summary: 'Submit a calculation of a zero-point energy',
        body: zpeJob,
        response: {
          ...answers({ 200: ['The job was accepted', zpeAccepted] }, ...CONFLICTS, ...WITH_BODY),
          [mismatchStatus]: errorAnswer('IDEMPOTENCY_KEY_REUSED', ...(mismatchStatus === 409 ? CONFLICTS : [])),
        },
      },
    },
    async (request, reply) => {
      const input = { kind: ZPE, queue: ZPE, payload: request.body }
      const definition = await services.definitions.find(ZPE)
      const outcome = await services.submission.submit(callerOf(request), input, {
        key: keyOf(request.raw, {}),
        operation: OPERATION,
        policy: zpePolicy(definition?.policy ?? {}),
        ...(definition === null ? {} : { definitionId: definition.definitionId }),
      })
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      if (outcome.kind === 'replayed') reply.header('idempotent-replayed', 'true')
      return { job_id: outcome.jobId }
    },
  )
}

/**
 * S1's workers send no heartbeats. If a lease ended before the timeout of its run, a second calculation would start.
 */
function zpePolicy(lent: JobPolicy): JobPolicy {
  const { timeout_seconds = 0, lease_ttl_seconds = 0 } = lent
  const leaseSeconds = Math.max(lease_ttl_seconds, Math.ceil(timeout_seconds))
  return { ...lent, ...(leaseSeconds === 0 ? {} : { lease_ttl_seconds: leaseSeconds }), continuation_seconds: 0 }
}

function readRoutes(app: ApiInstance, { jobs }: Services): void {
  app.get(
    '/calc/zpe/jobs/:job_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show the status of a calculation',
        params: jobParams,
        response: answers({ 200: ['The status', zpeState] }, 'NOT_FOUND'),
      },
    },
    async (request) => renderState(await zpeJobOf(callerOf(request), request.params.job_id)),
  )

  app.get(
    '/calc/zpe/jobs/:job_id/result',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: "Show a calculation's result",
        params: jobParams,
        response: answers({ 200: ['The result', zpeResult] }, 'NOT_FOUND', 'RESULT_NOT_READY', 'JOB_FAILED'),
      },
    },
    async (request) => {
      const { result } = await resultOf(callerOf(request), request.params.job_id)
      return { result }
    },
  )

  app.get(
    '/calc/zpe/jobs/:job_id/files',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: "Show a calculation's summary (text) or frequencies (CSV)",
        params: jobParams,
        querystring: filesQuery,
        response: answers({ 200: ['The file'] }, 'NOT_FOUND', 'RESULT_NOT_READY', 'JOB_FAILED'),
      },
    },
    async (request, reply) => {
      const { kind } = request.query
      const { job_id: jobId } = request.params
      const { summary_text, freqs_csv } = await resultOf(callerOf(request), jobId)
      const [type, name, text] =
        kind === 'summary' ? ['text/plain', 'summary.txt', summary_text] : ['text/csv', 'freqs.csv', freqs_csv]
      if (text === null) throw new IchidoError('NOT_FOUND', `The job has no ${kind}`)
      reply.header('content-type', `${type}; charset=utf-8`)
      return reply.header('content-disposition', attachment(`zpe-${jobId}-${name}`)).send(text)
    },
  )

  async function zpeJobOf(caller: Caller, jobId: string): Promise<JobDetail> {
    const job = await jobs.get(caller, jobId)
    if (job.kind !== ZPE) throw new IchidoError('NOT_FOUND', `There is no calculation ${jobId}`)
    return job
  }

  async function resultOf(caller: Caller, jobId: string) {
    await zpeJobOf(caller, jobId)
    return jobs.result(caller, jobId, 0)
  }
}
