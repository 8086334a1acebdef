import { IchidoError } from '@ichido/sdk/protocol'
import { check } from '../../contract/common.ts'
import * as contract from '../../contract/leases.ts'
import { errorOf } from '../../core/json/problem.ts'
import { findJsonProblem } from '../../core/json/request-json.ts'
import { isoOrNull } from '../../services/answers.ts'
import { type FinishOutcome, type LeaseReport, toReport } from '../../services/runs/runs.ts'
import { workerOf } from '../auth/auth.ts'
import { BATCH_BODY_BYTES_MAX, bodyBytesFor } from '../server/body-limits.ts'
import { errorBody, toIchidoError } from '../server/errors.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import type { ApiInstance, RouteContext } from './context.ts'
import { LOST, leaseNext, mayLease } from './leases.ts'

const tags = ['leases']
const params = contract.leaseParams
const worker = { ability: 'worker' } as const
const REFUSED = [...LOST, 'NOT_STARTED', 'OUTCOME_ALREADY_RECORDED', 'VERSION_MISMATCH', 'EPOCH_MISMATCH'] as const
const REPEATS = 'The same report again gets the same answer. With `next`, the call also leases the next runs.'

/** Workers report here how runs ended. */
export function finishRoutes(app: ApiInstance, context: RouteContext): void {
  const { services } = context
  // A failure has the same limit: a long one is cut and recorded, not refused.
  const bodyLimit = bodyBytesFor(services.deps.limits.resultBytesMax)

  async function finish(workerId: string, leaseId: string, input: contract.ResultInput | contract.FailureInput) {
    const guards = { version: input.version, leaderEpoch: input.leader_epoch }
    const outcome = await services.runs.finish(workerId, leaseId, toReport(input), guards)
    if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
    return outcome
  }

  app.post(
    '/v1/leases/:lease_id/result',
    {
      bodyLimit,
      config: worker,
      schema: {
        tags,
        summary: 'Report that a run succeeded',
        description: `${REPEATS} If a cancel was requested, the job still ends CANCELED.`,
        params,
        body: contract.resultRequest,
        response: answers({ 200: ['The outcome is recorded', contract.resultResponse] }, ...WITH_BODY, ...REFUSED),
      },
    },
    async (request, reply) => {
      const { next, ...input } = request.body
      const { workerId } = workerOf(request)
      if (next !== undefined) mayLease(context, request, reply, next)
      const outcome = await finish(workerId, request.params.lease_id, input)
      const answer = { state: outcome.state, repeated: outcome.kind === 'repeated' }
      return next === undefined ? answer : { ...answer, leases: await leaseNext(context, request, reply, next) }
    },
  )

  app.post(
    '/v1/leases/:lease_id/failed',
    {
      bodyLimit,
      config: { ...worker, takesAnyText: true },
      schema: {
        tags,
        summary: 'Report that a run failed',
        description: REPEATS,
        params,
        body: contract.failedRequest,
        response: answers({ 200: ['The outcome is recorded', contract.failedResponse] }, ...WITH_BODY, ...REFUSED),
      },
    },
    async (request, reply) => {
      const { next, ...input } = request.body
      const { workerId } = workerOf(request)
      if (next !== undefined) mayLease(context, request, reply, next)
      const outcome = await finish(workerId, request.params.lease_id, input)
      const answer = renderFailure(outcome)
      return next === undefined ? answer : { ...answer, leases: await leaseNext(context, request, reply, next) }
    },
  )

  app.post(
    '/v1/leases/report',
    {
      bodyLimit: BATCH_BODY_BYTES_MAX,
      // Any text is allowed for the failures. The results are checked one by one.
      config: { ...worker, takesAnyText: true },
      schema: {
        tags,
        summary: 'Report how up to 1,000 runs ended',
        description: `Each report has its own outcome, and a refused report does not affect the others. ${REPEATS}`,
        body: contract.reportRequest,
        response: answers({ 200: ['The outcome of each report', contract.reportResponse] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { reports, next } = request.body
      const { workerId } = workerOf(request)
      if (next !== undefined) mayLease(context, request, reply, next)
      const recorded = recordAll(workerId, reports, request.id)
      if (next === undefined) return { data: await recorded }
      // The database does both at the same time.
      const [data, leases] = await Promise.all([recorded, leaseNext(context, request, reply, next)])
      return { data, leases }
    },
  )

  async function recordAll(workerId: string, items: readonly unknown[], requestId: string) {
    const reports = items.map(parseItem)
    const outcomes = await services.runs.finishAll(workerId, reports)
    return outcomes.map((settled, i) => {
      try {
        if (settled.status === 'rejected') throw settled.reason
        const outcome = settled.value
        if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
        const answer = isFailure(items[i])
          ? renderFailure(outcome)
          : { state: outcome.state, repeated: outcome.kind === 'repeated' }
        return { lease_id: reports[i]?.leaseId ?? null, status: 200, ...answer }
      } catch (thrown) {
        const error = toIchidoError(thrown)
        if (error.code === 'INTERNAL') app.log.error({ err: thrown, requestId }, 'an item of a batch failed')
        return { lease_id: leaseIdOf(items[i]), status: error.status, ...errorBody(error, requestId) }
      }
    })
  }
}

const isFailure = (item: unknown) => typeof item === 'object' && item !== null && 'error_code' in item

/** An item that cannot be read fails alone. */
function parseItem(item: unknown): LeaseReport {
  try {
    const input = isFailure(item) ? check(contract.failureItem, item) : check(contract.resultItem, checkedJson(item))
    const guards = { version: input.version, leaderEpoch: input.leader_epoch }
    return { leaseId: input.lease_id, read: () => toReport(input), guards }
  } catch (error) {
    const read = () => {
      throw error
    }
    return { leaseId: '', read }
  }
}

function checkedJson(item: unknown): unknown {
  const problem = findJsonProblem(JSON.stringify(item))
  if (problem !== null) throw errorOf(problem)
  return item
}

function leaseIdOf(item: unknown): string | null {
  const named = typeof item === 'object' && item !== null && 'lease_id' in item ? item.lease_id : null
  return typeof named === 'string' ? named : null
}

function renderFailure(outcome: Exclude<FinishOutcome, { kind: 'refused' }>) {
  return {
    state: outcome.state,
    repeated: outcome.kind === 'repeated',
    requeued: outcome.next !== null,
    retry_count: outcome.retryCount,
    next_run_at: isoOrNull(outcome.next?.runAtMs ?? null),
    dead: outcome.dead,
  }
}
