import { randomBytes } from 'node:crypto'
import { v7 } from 'uuid'
import type { RunError } from '../../core/run/run-state.ts'
import { findEvents } from '../../store/events/events.ts'
import { type CancelOutcome, cancelJob } from '../../store/jobs/cancel-or-delete.ts'
import { type HeartbeatItem, type HeartbeatOutcome, heartbeatBatch } from '../../store/leasing/heartbeat-runs.ts'
import {
  type LeaseAnswer,
  type Leased,
  type LeaseItem,
  leaseBatch,
  type Positions,
} from '../../store/leasing/lease-runs.ts'
import { promoteDue } from '../../store/leasing/promote-runs.ts'
import { type ReleaseItem, type ReleaseOutcome, releaseBatch } from '../../store/leasing/release-runs.ts'
import type { Command, Store } from '../../store/port.ts'
import { type FinishItem, type FinishOutcome, finishBatch, type Report } from '../../store/runs/finish-runs.ts'
import { type StartItem, type StartOutcome, startBatch } from '../../store/runs/start-runs.ts'
import type { Row } from '../../store/statement.ts'
import { type ReserveOutcome, reserveSlot } from '../../store/submission/reservations.ts'
import type { Accepted, SubmitItem, SubmitOutcome } from '../../store/submission/submission.ts'
import { submitJobs } from '../../store/submission/submit-jobs.ts'
import { text } from './rows.ts'
import { sql, unique } from './store.ts'

type SubmitChanges = Partial<Omit<SubmitItem, 'key'>> & {
  key?: string | Partial<NonNullable<SubmitItem['key']>> | null
}

export const KEY_TTL_MS = 60_000

/** A worker names a run by these. */
export type Holding = Pick<Leased, 'jobId' | 'leaseId' | 'version'>

/** A test's own user, queue and worker, and their actions on a store. */
export class Scene {
  readonly store: Store
  readonly userId = unique('user')
  readonly queue = unique('queue')
  readonly workerId = unique('worker')
  /** The kind rotation that a node remembers. */
  readonly #turns = new Map<string, string | null>()

  constructor(store: Store) {
    this.store = store
  }

  item({ key = null, ...changes }: SubmitChanges = {}): SubmitItem {
    return {
      jobId: v7(),
      userId: this.userId,
      kind: 'work',
      queue: this.queue,
      payload: '{"n":1}',
      policy: {},
      priority: 0,
      labels: null,
      estimatedCostMicros: 0,
      traceparent: null,
      replacesJobId: null,
      runAtMs: null,
      delayMs: 0,
      fairTag: Date.now(),
      key: key === null ? null : { ...KEY, ...(typeof key === 'string' ? { key } : key) },
      reservationId: null,
      consumedReservationId: null,
      ...changes,
    }
  }

  submitAll(items: readonly SubmitItem[]): Promise<SubmitOutcome[]> {
    return this.store.write(submitJobs(items, renderForTest))
  }

  async submit(changes: SubmitChanges = {}): Promise<SubmitOutcome> {
    return only(await this.submitAll([this.item(changes)]))
  }

  /** Submits a job that must be accepted, and returns its id. */
  async submitted(changes: SubmitChanges = {}): Promise<string> {
    const outcome = await this.submit(changes)
    if (outcome.kind === 'refused') throw new Error(`Refused: ${outcome.refusal.message}`)
    return outcome.jobId
  }

  leaseItem(changes: Partial<LeaseItem> = {}): LeaseItem {
    return {
      workerId: this.workerId,
      queues: [this.queue],
      kinds: ['work'],
      max: 1,
      pollId: v7(),
      named: true,
      token: randomBytes(16).toString('base64url'),
      leaseTtlMs: 60_000,
      startId: null,
      ...changes,
    }
  }

  async lease(changes: Partial<LeaseItem> = {}): Promise<Leased[]> {
    const answer = await this.store.write(leaseBatch([this.leaseItem(changes)], undefined, this.#turns))
    for (const [queue, last] of answer.rotation) this.#turns.set(queue, last)
    return only(answer.leases)
  }

  /** Leases the only available run. */
  async leased(changes: Partial<LeaseItem> = {}): Promise<Leased> {
    return only(await this.lease(changes))
  }

  startItem(lease: Holding, changes: Partial<StartItem> = {}): StartItem {
    const { jobId, leaseId, version } = lease
    return { jobId, leaseId, version, workerId: this.workerId, startId: 'start', ...changes }
  }

  async start(lease: Holding, changes: Partial<StartItem> = {}): Promise<StartOutcome> {
    return only(await this.store.write(startBatch([this.startItem(lease, changes)])))
  }

  /** A new job that the worker holds in RUNNING. */
  async running(changes: SubmitChanges = {}): Promise<Leased> {
    await this.submitted(changes)
    return this.leased({ startId: 'start' })
  }

  heartbeatItem(lease: Holding, changes: Partial<HeartbeatItem> = {}): HeartbeatItem {
    return { jobId: lease.jobId, leaseId: lease.leaseId, workerId: this.workerId, ...changes }
  }

  async heartbeat(lease: Holding, changes: Partial<HeartbeatItem> = {}): Promise<HeartbeatOutcome> {
    return only(await this.store.write(heartbeatBatch([this.heartbeatItem(lease, changes)])))
  }

  endItem(lease: Holding, report: Report, changes: Partial<FinishItem> = {}): FinishItem {
    return {
      jobId: lease.jobId,
      leaseId: lease.leaseId,
      workerId: this.workerId,
      version: null,
      leaderEpoch: null,
      outcomeHash: JSON.stringify(report.verb === 'finish' ? report.result : report.error),
      report,
      nextRunId: v7(),
      random: 0,
      ...changes,
    }
  }

  async finish(lease: Holding, changes: Partial<FinishItem> = {}): Promise<FinishOutcome> {
    return only(await this.store.write(finishBatch([this.endItem(lease, finished(), changes)])))
  }

  async fail(lease: Holding, changes: Partial<FinishItem> = {}): Promise<FinishOutcome> {
    return only(await this.store.write(finishBatch([this.endItem(lease, failed(), changes)])))
  }

  releaseItem(lease: Holding, changes: Partial<ReleaseItem> = {}): ReleaseItem {
    return { jobId: lease.jobId, leaseId: lease.leaseId, workerId: this.workerId, nextRunId: v7(), ...changes }
  }

  async release(lease: Holding, changes: Partial<ReleaseItem> = {}): Promise<ReleaseOutcome> {
    return only(await this.store.write(releaseBatch([this.releaseItem(lease, changes)])))
  }

  cancel(jobId: string): Promise<CancelOutcome> {
    return this.store.write(cancelJob(jobId))
  }

  reserve(ttlMs = 300_000, reservationId: string = v7()): Promise<ReserveOutcome> {
    return this.store.write(reserveSlot(reservationId, this.userId, ttlMs))
  }

  /** The runs of a job, oldest first. */
  runs(jobId: string): Promise<Row[]> {
    return sql(this.store, 'SELECT * FROM ichido.runs WHERE job_id = $1 ORDER BY run_no', jobId)
  }

  async run(runId: string): Promise<Row> {
    return only(await sql(this.store, 'SELECT * FROM ichido.runs WHERE id = $1', runId))
  }

  async state(jobId: string): Promise<string> {
    return text((await this.runs(jobId)).at(-1), 'state')
  }

  async events(jobId: string): Promise<unknown[]> {
    const rows = (await this.store.read(findEvents(jobId, 0, EVENTS_MAX)))?.events ?? []
    rows.forEach((row, i) => {
      if (row.n !== i + 1) throw new Error(`Event ${i + 1} of job ${jobId} has the number ${row.n}`)
    })
    return rows.map(({ data }) => JSON.parse(data))
  }

  /** Lets time pass for this user by moving all its times back. */
  async age(ms: number): Promise<void> {
    for (const [table, columns] of Object.entries(INSTANTS)) {
      const changes = columns.map((column) => `${column} = ${column} - ${ms}`)
      await sql(this.store, `UPDATE ichido.${table} SET ${changes.join()} WHERE user_id = $1`, this.userId)
    }
    await this.store.write(promoteDue(100, []))
  }
}

const EVENTS_MAX = 10_000

const INSTANTS = {
  idempotency_keys: ['created_at', 'expires_at'],
  job_reservations: ['created_at', 'expires_at', 'consumed_at', 'released_at'],
  jobs: ['created_at'],
  runs: ['run_at', 'fair_tag', 'created_at', 'assigned_at', 'lease_expires_at', 'started_at', 'finished_at'],
}

const KEY = { key: 'key', operation: 'submit', requestHash: 'hash', ttlMs: KEY_TTL_MS }

export const renderForTest = (accepted: Accepted): string => JSON.stringify(accepted)

export function finished(changes: Partial<Extract<Report, { verb: 'finish' }>> = {}): Report {
  return {
    verb: 'finish',
    result: '{"ok":true}',
    summaryText: null,
    freqsCsv: null,
    meta: null,
    costMicros: null,
    ...changes,
  }
}

export function failed(error: RunError = { code: 'BROKEN', message: 'It broke' }, retryable = true): Report {
  return { verb: 'fail', error, retryable }
}

export function only<T>(list: readonly T[]): T {
  const [first, ...rest] = list
  if (first === undefined || rest.length > 0) throw new Error(`Expected one of it, not ${list.length}`)
  return first
}

/** A lease command that returns only the leases, and starts without a rotation of kinds. */
export function leasesFor(items: readonly LeaseItem[], from?: Positions): Command<Leased[][]> {
  const { name, lane, work, fastPath } = leaseBatch(items, from)
  const leasesOf = (answer: LeaseAnswer | null) => answer?.leases ?? null
  return {
    name,
    lane,
    *work(again) {
      return (yield* work(again)).leases
    },
    fastPath: fastPath && { step: fastPath.step, settle: (rows) => leasesOf(fastPath.settle(rows)) },
  }
}
