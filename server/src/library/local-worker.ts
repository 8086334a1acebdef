import { IchidoError } from '@ichido/sdk/protocol'
import type { LeaseCall, RunReport, WorkerTransport } from '@ichido/sdk/worker'
import { check } from '../contract/common.ts'
import { publishRequest } from '../contract/events.ts'
import type { Services } from '../services/index.ts'
import { toReport } from '../services/runs/runs.ts'
import type { FinishOutcome, Report } from '../store/runs/finish-runs.ts'
import { checkJson, toOutage } from './local-transport.ts'

/** The worker's transport inside the process. */
export function localWorkerTransport(
  services: Services,
  workerId: string,
  /** Awaited before the worker gets a leased run. */
  onLease: () => void | Promise<void>,
): WorkerTransport {
  const { runs, events } = services
  async function lease(call: LeaseCall, signal?: AbortSignal) {
    const leases = await runs.lease(workerId, call, signal)
    if (leases.length > 0) await onLease()
    return leases
  }
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
    cancels: (known, waitMs, signal) => runs.cancels(workerId, known, waitMs, signal),
    async publish(leaseId, published) {
      const list = published.map((event) => ({ ...event, data: event.data ?? null }))
      const { events: checked } = check(publishRequest, { events: list })
      for (const [i, { data }] of checked.entries()) checkJson(data, `events.${i}.data`)
      await events.publishAll(workerId, leaseId, checked).catch(throwOutage)
    },
    async log(leaseId, chunks) {
      await services.logs.append(workerId, leaseId, chunks).catch(throwOutage)
    },
    async report(reports, next) {
      const finished = runs.finishAll(
        workerId,
        reports.map((report) => ({ leaseId: report.leaseId, read: () => reportOf(report) })),
      )
      // Both run at the same time.
      const [outcomes, leases] = await Promise.all([finished, next === null ? [] : lease(next)])
      return { refusals: outcomes.map(refusalOf), leases }
    },
    async release(leaseId) {
      const outcome = await runs.release(workerId, leaseId).catch(throwOutage)
      if (outcome.kind === 'refused') throw new IchidoError(outcome.reason)
    },
  }
}

/** Null: the report was recorded. */
function refusalOf(settled: PromiseSettledResult<FinishOutcome>): IchidoError | null {
  if (settled.status === 'fulfilled') {
    return settled.value.kind === 'refused' ? new IchidoError(settled.value.reason) : null
  }
  const error = toOutage(settled.reason)
  if (error instanceof IchidoError) return error
  throw error
}

function reportOf(report: RunReport): Report {
  if ('result' in report) return toReport(report.result, checkJson)
  const { code, message, traceback, retryable } = report.failure
  return toReport({ error_code: code, error_message: message, traceback, retryable })
}

function throwOutage(error: unknown): never {
  throw toOutage(error)
}
