import type { JobListFilter, Transport } from '@ichido/sdk/client'
import { IchidoError, type JobShape, type Page, type SubmitRequest, type SubmitResponse } from '@ichido/sdk/protocol'
import type { LeaseCall, RunReport, WorkerTransport } from '@ichido/sdk/worker'
import type { z } from 'zod'
import { publishRequest } from './core/contract/events.ts'
import { listJobsQuery } from './core/contract/jobs.ts'
import { isUuid } from './core/contract/list.ts'
import { describeProblem } from './core/contract/problem.ts'
import { type SubmitInput, submitRequest } from './core/contract/submit.ts'
import { parseKey } from './core/key.ts'
import { toMicros } from './core/quota.ts'
import type { Caller } from './core/roles.ts'
import { findJsonProblem } from './core/strict-json.ts'
import { cursorOfSeq } from './services/feeds.ts'
import type { Services } from './services/index.ts'
import { refusalError, type SubmitOptions } from './services/submit-job.ts'
import type { Report } from './store/commands/end-runs.ts'
import { EVERY_JOB } from './store/commands/list-jobs.ts'
import type { SubmitOutcome } from './store/commands/submission.ts'
import { StoreUnavailable } from './store/port.ts'

/** Carries a submission out on a transaction of the caller's own. */
export type SubmitIn = (
  tx: unknown,
  caller: Caller,
  input: SubmitInput,
  options: SubmitOptions,
) => Promise<SubmitOutcome>

/** Whoever watches looks by itself this often whether it is still to go on. */
const WATCH_WAIT_MS = 20_000

/**
 * The client's transport inside the process: the same services as behind HTTP, without the wire. `closed` aborts when the
 * store is about to go away; whoever still waits or calls then hears its reason.
 */
export function localTransport(services: Services, caller: Caller, submitIn: SubmitIn, closed: AbortSignal): Transport {
  async function whileOpen<T>(call: () => Promise<T>): Promise<T> {
    closed.throwIfAborted()
    try {
      return await call()
    } catch (error) {
      closed.throwIfAborted()
      throw toOutage(error)
    }
  }
  const orClosed = (signal: AbortSignal | undefined) => (signal ? AbortSignal.any([signal, closed]) : closed)

  return {
    submit: (request, { key, tx }) =>
      whileOpen(async () => {
        const input = checkRequest(request)
        const options = { key: checkKey(key ?? input.idempotency_key) }
        const outcome = await (tx === undefined
          ? services.submission.submit(caller, input, options)
          : submitIn(tx, caller, input, options))
        if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
        return { response: JSON.parse(outcome.body) as SubmitResponse, replayed: outcome.kind === 'replayed' }
      }),
    get: (jobId) => whileOpen(() => services.jobs.get(caller, jobId)),
    list: (filter) => whileOpen(() => listJobs(services, caller, filter)),
    cancel: (jobId) => whileOpen(async () => (await services.jobs.cancel(caller, jobId)).job),
    result: (jobId, waitMs, signal) => whileOpen(() => services.jobs.result(caller, jobId, waitMs, orClosed(signal))),
    async *watch(jobId, { after = 0, lastSeq, signal }) {
      let cursor =
        lastSeq === undefined ? after : await whileOpen(() => cursorOfSeq(services.deps.store, jobId, lastSeq))
      for (;;) {
        signal?.throwIfAborted()
        const from = cursor
        const { events, ended } = await whileOpen(() =>
          services.events.read(caller, jobId, from, WATCH_WAIT_MS, orClosed(signal)),
        )
        for (const event of events) {
          cursor = event.cursor
          yield event
        }
        if (ended) return
      }
    },
  }
}

/** What passes by itself has a code that says so. */
function toOutage(error: unknown): unknown {
  return error instanceof StoreUnavailable ? new IchidoError('UNAVAILABLE', error.message) : error
}

async function listJobs(services: Services, caller: Caller, filter: JobListFilter): Promise<Page<JobShape>> {
  const { limit, cursor = null, state, queue, kind, label, key } = check(listJobsQuery, filter)
  if (cursor !== null && !isUuid(cursor)) {
    throw new IchidoError('INVALID_PAYLOAD', 'cursor must be the next_cursor of an earlier list', { field: 'cursor' })
  }
  return services.jobs.list(
    caller,
    {
      ...EVERY_JOB,
      states: state ?? [],
      queue: queue ?? null,
      kind: kind ?? null,
      label: label ?? null,
      key: key ?? null,
    },
    limit,
    cursor,
  )
}

function check<T>(schema: z.ZodType<T>, value: unknown): T {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  const { field, message } = describeProblem(parsed.error)
  throw new IchidoError('INVALID_PAYLOAD', message, { field })
}

/** What does not survive a round trip through JSON is refused here as it is over HTTP. */
function checkRequest(request: SubmitRequest): SubmitInput {
  const input = check(submitRequest, request)
  const { payload, labels } = input
  if (labels !== undefined) checkJson(labels, 'labels')
  return payload === undefined ? input : { ...input, payload: JSON.parse(checkJson(payload, 'payload')) as unknown }
}

function checkJson(value: unknown, field: string): string {
  const refuse = (why: string) => new IchidoError('INVALID_PAYLOAD', `${field} ${why}`, { field })
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw refuse(`cannot be written as JSON: ${error instanceof Error ? error.message : String(error)}`)
  }
  if (text === undefined) throw refuse(`cannot be written as JSON: it is a ${typeof value}`)
  const problem = findJsonProblem(text)
  if (problem !== null) throw refuse(problem.message)
  return text
}

function checkKey(key: string | undefined): string | null {
  if (key === undefined) return null
  const parsed = parseKey(key)
  if (parsed.ok) return parsed.key
  throw new IchidoError('INVALID_PAYLOAD', `idempotency_key ${parsed.problem}`, { field: 'idempotency_key' })
}

/** The worker's transport inside the process. */
export function localWorkerTransport(services: Services, workerId: string): WorkerTransport {
  const { runs, events } = services
  const lease = (call: LeaseCall, signal?: AbortSignal) => runs.lease(workerId, call, signal)
  return {
    lease,
    async start(leaseId, startId) {
      const outcome = await runs.start(workerId, leaseId, startId).catch(throwOutage)
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
      return { repeated: outcome.kind === 'repeated' }
    },
    heartbeat: (leaseIds) =>
      Promise.all(
        leaseIds.map(async (leaseId) => {
          const outcome = await runs.heartbeat(workerId, leaseId)
          const held = outcome.kind === 'extended'
          return { held, cancelRequested: held && outcome.cancelRequested }
        }),
      ),
    async publish(leaseId, published) {
      const list = published.map((event) => ({ ...event, data: event.data ?? null }))
      const { events: checked } = check(publishRequest, { events: list })
      for (const [i, { data }] of checked.entries()) checkJson(data, `events.${i}.data`)
      await events.publishAll(workerId, leaseId, checked).catch(throwOutage)
    },
    async report(reports, next) {
      const recorded = Promise.all(reports.map((report) => record(services, workerId, report)))
      // Neither waits for the other: the database does both at once.
      const [refusals, leases] = await Promise.all([recorded, next === null ? [] : lease(next)])
      return { refusals, leases }
    },
    async release(leaseId) {
      const outcome = await runs.release(workerId, leaseId).catch(throwOutage)
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
    },
  }
}

/** Answers with why it was refused. */
async function record(services: Services, workerId: string, report: RunReport): Promise<IchidoError | null> {
  try {
    const outcome = await services.runs.report(workerId, report.leaseId, toReport(report)).catch(throwOutage)
    return outcome.kind === 'refused' ? new IchidoError(outcome.reason) : null
  } catch (error) {
    if (error instanceof IchidoError) return error
    throw error
  }
}

function toReport(report: RunReport): Report {
  if ('failure' in report) {
    const { code, message, traceback, retryable } = report.failure
    return { verb: 'fail', error: { code, message, ...(traceback === undefined ? {} : { traceback }) }, retryable }
  }
  const { result, meta, cost } = report.result
  return {
    verb: 'finish',
    result: checkJson(result, 'result'),
    summaryText: null,
    freqsCsv: null,
    meta: meta === undefined ? null : checkJson(meta, 'meta'),
    costMicros: cost === undefined ? null : toMicros(cost),
  }
}

function throwOutage(error: unknown): never {
  throw toOutage(error)
}
