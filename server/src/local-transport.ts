import type { Transport } from '@ichido/sdk/client'
import { IchidoError, type JobDetail, type SubmitRequest, type SubmitResponse } from '@ichido/sdk/protocol'
import type { WorkerTransport } from '@ichido/sdk/worker'
import { describeProblem } from './core/contract/problem.ts'
import { type SubmitInput, submitRequest } from './core/contract/submit.ts'
import { parseKey } from './core/key.ts'
import type { Caller } from './core/roles.ts'
import { findJsonProblem } from './core/strict-json.ts'
import type { Services } from './services/index.ts'
import { refusalError, type SubmitOptions } from './services/submit-job.ts'
import type { SubmitOutcome } from './store/commands/submit-jobs.ts'

/** Carries a submission out on a transaction of the caller's own. */
export type SubmitIn = (
  tx: unknown,
  caller: Caller,
  input: SubmitInput,
  options: SubmitOptions,
) => Promise<SubmitOutcome>

/** The client's transport inside the process: the same services as behind HTTP, without the wire. */
export function localTransport(services: Services, caller: Caller, submitIn: SubmitIn): Transport {
  return {
    async submit(request, { key, tx }) {
      const input = checkRequest(request)
      const options = { key: checkKey(key ?? input.idempotency_key) }
      const outcome = await (tx === undefined
        ? services.submission.submit(caller, input, options)
        : submitIn(tx, caller, input, options))
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      return { response: JSON.parse(outcome.body) as SubmitResponse, replayed: outcome.kind === 'replayed' }
    },
    get: (jobId) => services.jobs.get(caller, jobId),
    list: (filter) => {
      const [name, ...value] = filter.label?.split(':') ?? []
      return services.jobs.list(
        caller,
        {
          states: filter.state?.split(',') ?? [],
          userId: null,
          queue: filter.queue ?? null,
          kind: filter.kind ?? null,
          label: name === undefined ? null : { name, value: value.join(':') },
          key: filter.key ?? null,
          createdFromMs: null,
          createdToMs: null,
        },
        filter.limit ?? 50,
        filter.cursor ?? null,
      )
    },
    cancel: async (jobId): Promise<JobDetail> => (await services.jobs.cancel(caller, jobId)).job,
    result: (jobId, waitMs, signal) => services.jobs.result(caller, jobId, waitMs, signal),
    events: (jobId, after, waitMs, signal) => services.events.read(caller, jobId, after, waitMs, signal),
  }
}

function checkRequest(request: SubmitRequest): SubmitInput {
  const parsed = submitRequest.safeParse(request)
  if (!parsed.success) {
    const { field, message } = describeProblem(parsed.error)
    throw new IchidoError('INVALID_PAYLOAD', message, { field })
  }
  // What does not survive a round trip through JSON is refused here as it is over HTTP.
  const problem = findJsonProblem(JSON.stringify(request.payload ?? null))
  if (problem !== null) throw new IchidoError('INVALID_PAYLOAD', `payload ${problem.message}`, { field: 'payload' })
  return parsed.data
}

function checkKey(key: string | undefined): string | null {
  if (key === undefined) return null
  const parsed = parseKey(key)
  if (parsed.ok) return parsed.key
  throw new IchidoError('INVALID_PAYLOAD', `idempotency_key ${parsed.problem}`, { field: 'idempotency_key' })
}

/** The worker's transport inside the process. */
export function localWorkerTransport(services: Services, workerId: string): WorkerTransport {
  return {
    lease: ({ queue, kinds, max, waitMs, pollId, startId }, signal) =>
      services.runs.lease(workerId, { queues: [queue], kinds, max, waitMs, pollId, startId }, signal),
    async heartbeat(leaseId) {
      const outcome = await services.runs.heartbeat(workerId, leaseId)
      return {
        held: outcome.kind === 'extended',
        cancelRequested: outcome.kind === 'extended' && outcome.cancelRequested,
      }
    },
    async publish(leaseId, stage, seq, data) {
      await services.events.publish(workerId, leaseId, { stage, seq, data })
    },
    async finish(leaseId, { result, meta, cost }) {
      const outcome = await services.runs.report(workerId, leaseId, {
        verb: 'finish',
        result: JSON.stringify(result ?? null),
        summaryText: null,
        freqsCsv: null,
        meta: meta === undefined ? null : JSON.stringify(meta),
        costMicros: cost === undefined ? null : Math.round(cost * 1_000_000),
      })
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
    },
    async fail(leaseId, { code, message, traceback, retryable }) {
      const error = { code, message, ...(traceback === undefined ? {} : { traceback }) }
      const outcome = await services.runs.report(workerId, leaseId, {
        verb: 'fail',
        error,
        retryable,
      })
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
    },
  }
}
