import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { publishRequest, publishResponse } from '../../contract/events.ts'
import * as contract from '../../contract/leases.ts'
import { iso, isoOrNull } from '../../services/answers.ts'
import type { HeartbeatOutcome } from '../../services/runs/runs.ts'
import { requireQueues } from '../../services/workers/workers.ts'
import { workerOf } from '../auth/auth.ts'
import { BATCH_BODY_BYTES_MAX } from '../server/body-limits.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { waitSignal } from '../server/streams.ts'
import type { ApiInstance, RouteContext } from './context.ts'

const tags = ['leases']
const params = contract.leaseParams
const worker = { ability: 'worker' } as const
/** The refusals of a call with a lease that the caller does not hold. */
export const LOST = ['NOT_FOUND', 'LEASE_LOST', 'ALREADY_ENDED'] as const

export function leaseRoutes(app: ApiInstance, context: RouteContext): void {
  const { services } = context
  app.post(
    '/v1/leases',
    {
      config: worker,
      schema: {
        tags,
        summary: 'Lease runs, or wait for some',
        description:
          'Only this worker holds the run until the lease ends. With `start`, the run is RUNNING at once; otherwise the worker must start it. A worker that drains gets nothing, after the wait time.',
        body: contract.leaseRequest,
        response: answers({ 200: ['The leases', contract.leasesResponse], 204: ['There is no work'] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      mayLease(context, request, reply, request.body)
      const leases = await leaseFor(context, request, reply, request.body)
      if (leases.length > 0) return { leases }
      return services.workers.drains(workerOf(request).workerId) ? { leases, draining: true } : reply.code(204).send()
    },
  )

  app.post(
    '/v1/leases/:lease_id/start',
    {
      config: worker,
      schema: {
        tags,
        summary: 'Start an assigned run',
        description:
          'After a refusal, the worker must not begin. The same start by the same process gets the same answer.',
        params,
        body: contract.startRequest,
        response: answers(
          { 200: ['The run is RUNNING', contract.startResponse] },
          ...WITH_BODY,
          ...LOST,
          'NOT_ASSIGNED',
          'VERSION_MISMATCH',
        ),
      },
    },
    async (request) => {
      const { start_id, version } = request.body
      const { workerId } = workerOf(request)
      const outcome = await services.runs.start(workerId, request.params.lease_id, start_id, version)
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
      return { version: outcome.version, leader_epoch: outcome.leaderEpoch, repeated: outcome.kind === 'repeated' }
    },
  )

  app.post(
    '/v1/leases/:lease_id/heartbeat',
    {
      config: worker,
      schema: {
        tags,
        summary: 'Extend a lease',
        params,
        body: contract.heartbeatRequest,
        response: answers({ 200: ['The lease is extended', contract.heartbeatResponse] }, ...WITH_BODY, ...LOST),
      },
    },
    async (request) => {
      const outcome = await services.runs.heartbeat(workerOf(request).workerId, request.params.lease_id)
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
      return {
        lease_expires_at: iso(outcome.leaseExpiresAtMs),
        lease_ttl_seconds: outcome.leaseTtlMs / 1000,
        cancel_requested: outcome.cancelRequested,
      }
    },
  )

  app.post(
    '/v1/leases/heartbeat',
    {
      config: worker,
      schema: {
        tags,
        summary: 'Extend up to 1,000 leases',
        body: contract.heartbeatsRequest,
        response: answers(
          { 200: ['One entry for each, in the same order', contract.heartbeatsResponse] },
          ...WITH_BODY,
        ),
      },
    },
    async (request) => {
      const { workerId } = workerOf(request)
      const beat = async (leaseId: string) => renderBeat(leaseId, await services.runs.heartbeat(workerId, leaseId))
      return { data: await Promise.all(request.body.lease_ids.map(beat)) }
    },
  )

  app.post(
    '/v1/leases/cancels',
    {
      config: worker,
      schema: {
        tags,
        summary: 'Wait for runs that must stop',
        description:
          'The answer comes as soon as the job of one of this worker’s leases is canceled, and has all leases that must stop. Send the last answer as `known`. Heartbeats say the same, but later.',
        body: contract.cancelsRequest,
        response: answers(
          { 200: ['The leases that must stop; empty after the wait time', contract.cancelsResponse] },
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { known, wait_seconds } = request.body
      const { workerId } = workerOf(request)
      if (wait_seconds > 0) context.seats.polls.take(workerId, reply)
      const signal = waitSignal(reply, context.draining)
      return { lease_ids: await services.runs.cancels(workerId, known, wait_seconds * 1000, signal) }
    },
  )

  app.post(
    '/v1/leases/:lease_id/logs',
    {
      bodyLimit: BATCH_BODY_BYTES_MAX,
      config: { ...worker, takesAnyText: true },
      schema: {
        tags,
        summary: 'Add to the log of a run',
        description:
          'Send chunks in the order of their numbers. A chunk whose number is not higher than the last one is a repeat.',
        params,
        body: contract.logsRequest,
        response: answers({ 200: ['The new chunks are stored', contract.logsResponse] }, ...WITH_BODY, ...LOST),
      },
    },
    async (request) => {
      const { workerId } = workerOf(request)
      return { accepted: await services.logs.append(workerId, request.params.lease_id, request.body.chunks) }
    },
  )

  app.post(
    '/v1/leases/:lease_id/events',
    {
      bodyLimit: BATCH_BODY_BYTES_MAX,
      config: worker,
      schema: {
        tags,
        summary: 'Publish events of a running job',
        description:
          'The call publishes all events, or none if one is refused. If (job, stage, seq) is already stored, the stored event stays, even if the data differ.',
        params,
        body: publishRequest,
        response: answers({ 200: ['One entry for each, in the same order', publishResponse] }, ...WITH_BODY, ...LOST),
      },
    },
    async (request) => {
      const { workerId } = workerOf(request)
      const accepted = await services.events.publishAll(workerId, request.params.lease_id, request.body.events)
      return { data: accepted.map((isNew) => ({ accepted: isNew })) }
    },
  )

  app.post(
    '/v1/leases/:lease_id/release',
    {
      config: worker,
      schema: {
        tags,
        summary: 'Give a run back',
        description:
          'A run that has started ends FAILED (`RELEASED`), and its next run is due at once. This costs no retry.',
        params,
        body: contract.releaseRequest,
        response: answers({ 200: ['The run is given back', contract.releaseResponse] }, ...WITH_BODY, ...LOST),
      },
    },
    async (request) => {
      const outcome = await services.runs.release(workerOf(request).workerId, request.params.lease_id)
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
      return { state: outcome.state }
    },
  )
}

/** Checked before anything is recorded, so that a refusal means that nothing was done. */
export function mayLease(
  { seats }: RouteContext,
  request: FastifyRequest,
  reply: FastifyReply,
  { queues, wait_seconds }: contract.LeaseInput,
): void {
  const identity = workerOf(request)
  requireQueues(identity, queues)
  if (wait_seconds > 0) seats.polls.take(identity.workerId, reply)
}

/** Call `mayLease` first. */
async function leaseFor(
  { services, draining }: RouteContext,
  request: FastifyRequest,
  reply: FastifyReply,
  input: contract.LeaseInput,
) {
  const { workerId } = workerOf(request)
  const { queues, kinds, max, wait_seconds, start, start_id, poll_id } = input
  const startId = start ? (start_id ?? poll_id ?? services.deps.world.uuid()) : undefined
  const call = { queues, kinds, max, waitMs: wait_seconds * 1000, pollId: poll_id, startId }
  return services.runs.lease(workerId, call, waitSignal(reply, draining))
}

/** Leases along with a report, which counts even if the worker may hold no more leases. */
export async function leaseNext(...call: Parameters<typeof leaseFor>): ReturnType<typeof leaseFor> {
  try {
    return await leaseFor(...call)
  } catch (error) {
    if (error instanceof IchidoError && error.details.setting === 'leases_per_worker_max') return []
    throw error
  }
}

function renderBeat(leaseId: string, outcome: HeartbeatOutcome) {
  const held = outcome.kind === 'extended'
  return {
    lease_id: leaseId,
    held,
    cancel_requested: held && outcome.cancelRequested,
    lease_expires_at: isoOrNull(held ? outcome.leaseExpiresAtMs : null),
    code: held ? null : outcome.reason,
  }
}
