import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import type { Services } from '../../../services/index.ts'
import { finishByJob } from '../../../services/runs/finish-by-job.ts'
import { type ToldEnd, toReport } from '../../../services/runs/runs.ts'
import { requireQueues, WORKER_TOKEN_TTL_MS } from '../../../services/workers/workers.ts'
import { callerOf, workerOf } from '../../auth/auth.ts'
import { type ApiInstance, jobParams } from '../../routes/context.ts'
import { bodyBytesFor } from '../../server/body-limits.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import {
  ZPE,
  zpeEnroll,
  zpeEnrollToken,
  zpeFailed,
  zpeFailure,
  zpeLease,
  zpeRegister,
  zpeRegistered,
  zpeReport,
  zpeReported,
  zpeRevoked,
} from './shapes.ts'

const tags = ['compat: zpe']
const workerParams = z.object({ worker_id: z.uuid().toLowerCase() })
const LEASE_HEADER = 'x-lease-id'
/** The default, if neither the definition nor the queue sets it. */
const LEASE_TTL_MS = 3_600_000
const REFUSALS = ['NOT_FOUND', 'LEASE_LOST', 'OUTCOME_ALREADY_RECORDED', 'ALREADY_ENDED', ...WITH_BODY] as const

/** The routes of S1's workers, and of the operators who enroll them. */
export async function zpeComputeRoutes(app: FastifyInstance, { services }: { services: Services }): Promise<void> {
  const api = app.withTypeProvider<ZodTypeProvider>()
  identityRoutes(api, services)
  finishRoutes(api, services)
  await app.register(leaseRoute, { services })
}

function identityRoutes(app: ApiInstance, { workers }: Services): void {
  app.post(
    '/calc/zpe/compute/enroll-tokens',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Make a token that registers one compute server',
        body: zpeEnroll,
        response: answers({ 200: ['The token', zpeEnrollToken] }, ...WITH_BODY),
      },
    },
    async (request) => {
      const { ttl_seconds, label } = request.body
      const enrollment = { queues: [ZPE], label: label || undefined, ttlSeconds: ttl_seconds ?? undefined }
      const made = await workers.enroll(callerOf(request), enrollment)
      return { token: made.enroll_token, expires_at: made.expires_at, ttl_seconds: made.ttl_seconds, label: made.label }
    },
  )

  app.post(
    '/calc/zpe/compute/servers/register',
    {
      config: { ability: 'public' },
      schema: {
        tags,
        summary: 'Register a compute server with an enroll token',
        body: zpeRegister,
        response: answers({ 200: ['The server and its token', zpeRegistered] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { token, name, meta } = request.body
      const made = await workers.register({ enrollToken: token, name: name || undefined, meta: meta ?? undefined })
      if (made === null) app.refuseCredentials(request, reply, 'The enroll token is unknown, used, or its time is up')
      return {
        server_id: made.worker_id,
        worker_id: made.worker_id,
        registered_at: made.registered_at,
        name: made.name,
        worker_token: made.worker_token,
        token_expires_at: made.expires_at,
        token_ttl_seconds: WORKER_TOKEN_TTL_MS / 1000,
      }
    },
  )

  app.delete(
    '/calc/zpe/compute/servers/:worker_id',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Revoke a compute server, for good',
        params: workerParams,
        response: answers({ 200: ['It is revoked', zpeRevoked] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const { revoked_tokens } = await workers.revoke(callerOf(request), request.params.worker_id)
      return { revoked_count: revoked_tokens }
    },
  )
}

async function leaseRoute(app: FastifyInstance, { services }: { services: Services }): Promise<void> {
  // A lease has no body. Like S1, the server ignores a body that clients send anyway.
  app.removeContentTypeParser('*')
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, _body, done) => done(null, undefined))
  app.withTypeProvider<ZodTypeProvider>().post(
    '/calc/zpe/compute/jobs/lease',
    {
      config: { ability: 'worker' },
      schema: {
        tags,
        summary: 'Lease the next calculation, if there is one',
        description:
          'The job counts as started at once. There are no heartbeats: the lease lasts for the `lease_ttl_seconds` of the ' +
          'definition `zpe` or of the queue, or else for an hour.',
        response: answers({ 200: ['The calculation', zpeLease], 204: ['There is no work'] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const worker = workerOf(request)
      requireQueues(worker, [ZPE])
      const startId = services.deps.world.uuid()
      const wanted = { queues: [ZPE], kinds: [ZPE], max: 1, waitMs: 0, startId, leaseTtlMs: LEASE_TTL_MS }
      const [leased] = await services.runs.lease(worker.workerId, wanted)
      if (leased === undefined) return reply.code(204).send()
      const { job_id, payload, lease_id, lease_ttl_seconds } = leased
      return { job_id, payload, lease_id, lease_ttl_seconds }
    },
  )
}

function finishRoutes(app: ApiInstance, services: Services): void {
  const bodyLimit = bodyBytesFor(services.deps.limits.resultBytesMax)
  app.post(
    '/calc/zpe/compute/jobs/:job_id/result',
    {
      bodyLimit,
      config: { ability: 'worker' },
      schema: {
        tags,
        summary: 'Report the result of a calculation',
        description:
          'The same result again gets the same answer, with `idempotent: true`; a different result is refused. A result ' +
          'that comes after its lease counts if no worker got the job since.',
        params: jobParams,
        body: zpeReport,
        response: answers({ 200: ['The result is stored', zpeReported] }, ...REFUSALS),
      },
    },
    async (request) => {
      const { lease_id, meta, ...told } = request.body
      const outcome = await report(request, request.params.job_id, lease_id, { ...told, meta: meta ?? undefined })
      return { ok: true as const, idempotent: outcome.kind === 'repeated' }
    },
  )

  app.post(
    '/calc/zpe/compute/jobs/:job_id/failed',
    {
      bodyLimit,
      config: { ability: 'worker', takesAnyText: true },
      schema: {
        tags,
        summary: 'Report that a calculation failed',
        description:
          'The job is retried after the backoff. It becomes a dead letter if its retries are used up, if `retryable` is ' +
          'false, or if its queue does not retry this `error_code`.',
        params: jobParams,
        body: zpeFailure,
        response: answers({ 200: ['The failure is recorded', zpeFailed] }, ...REFUSALS),
      },
    },
    async (request) => {
      const { lease_id, retryable, ...told } = request.body
      const failure = { ...told, retryable: retryable ?? true }
      const outcome = await report(request, request.params.job_id, lease_id, failure)
      return { ok: true as const, requeued: outcome.next !== null, retry_count: outcome.retryCount }
    },
  )

  function report(request: FastifyRequest, jobId: string, said: string | null | undefined, told: ToldEnd) {
    const { workerId } = workerOf(request)
    const header = request.headers[LEASE_HEADER]
    const leaseId = said ?? (typeof header === 'string' ? header : null)
    return finishByJob(services.deps, services.runs, { workerId, jobId, kind: ZPE, leaseId }, toReport(told))
  }
}
