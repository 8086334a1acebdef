import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import type {
  Beat,
  FailReport,
  LeaseCall,
  LogChunk,
  ReportAnswer,
  RunReport,
  WorkerEvent,
  WorkerTransport,
} from '../loop/ports.ts'

export const LEASE: LeaseShape = {
  job_id: 'job',
  run_id: 'run',
  attempt: 1,
  lease_id: 'lease',
  version: 2,
  leader_epoch: 1,
  queue: 'default',
  kind: 'work',
  payload: { n: 1 },
  lease_ttl_seconds: 60,
  continuation_seconds: 100,
  timeout_seconds: null,
  traceparent: null,
  stages: null,
  artifacts: [],
  last_progress: null,
}

export type Reported = { result: unknown } | FailReport | 'released'

/** A control plane that hands out the leases it was given and writes down what it hears. */
export class Plane implements WorkerTransport {
  readonly polls: LeaseCall[] = []
  readonly reports: Reported[] = []
  readonly work: LeaseShape[] = []
  /** How many leases each heartbeat was for. */
  readonly beats: number[] = []
  /** The known leases of each call that waited for cancellations. */
  readonly listened: (readonly string[])[] = []
  /** Tells the one that waits. */
  cancel: (leaseIds: string[]) => void = () => {}
  readonly starts: string[] = []
  /** Thrown by the next calls of that sort, one after the other. */
  readonly troubles: Record<
    'lease' | 'start' | 'heartbeat' | 'cancels' | 'publish' | 'log' | 'report' | 'release',
    Error[]
  > = {
    lease: [],
    start: [],
    heartbeat: [],
    cancels: [],
    publish: [],
    log: [],
    report: [],
    release: [],
  }
  /** Leases that were started by a call whose answer got lost. */
  readonly started = new Set<string>()
  readonly calls = { report: 0, publish: 0 }
  /** The events of each call. */
  readonly published: [string, number, unknown][][] = []
  /** The chunks of each call. */
  readonly logged: LogChunk[][] = []
  refusedStage: string | null = null
  holdPublish: Promise<void> = Promise.resolve()
  /** The refusals of the next reports. */
  readonly refusals: IchidoError[] = []
  answerBeat: () => Promise<Beat> = async () => HELD

  async lease(call: LeaseCall, signal?: AbortSignal): Promise<LeaseShape[]> {
    this.polls.push(call)
    this.#trouble('lease')
    const leases = this.work.splice(0, call.max)
    if (leases.length > 0 || call.waitMs === 0 || signal?.aborted) return leases
    return new Promise((resolve) => signal?.addEventListener('abort', () => resolve(this.work.splice(0, call.max))))
  }

  async start(leaseId: string): Promise<{ repeated: boolean }> {
    this.#trouble('start')
    const repeated = this.started.has(leaseId)
    this.starts.push(leaseId)
    return { repeated }
  }

  async heartbeat(leaseIds: readonly string[]): Promise<Beat[]> {
    this.beats.push(leaseIds.length)
    this.#trouble('heartbeat')
    return Promise.all(leaseIds.map(() => this.answerBeat()))
  }

  async cancels(known: readonly string[], _waitMs: number, signal: AbortSignal): Promise<string[]> {
    this.listened.push(known)
    this.#trouble('cancels')
    return new Promise((resolve, reject) => {
      this.cancel = resolve
      signal.addEventListener('abort', () => reject(signal.reason))
    })
  }

  async publish(_leaseId: string, events: readonly WorkerEvent[]): Promise<void> {
    this.calls.publish++
    this.#trouble('publish')
    await this.holdPublish
    const refusal = this.refusedStage === null ? undefined : events.find(({ stage }) => stage === this.refusedStage)
    if (refusal !== undefined) throw new IchidoError('INVALID_PAYLOAD', `${refusal.stage} is refused`)
    this.published.push(events.map(({ stage, seq, data }) => [stage, seq, data]))
  }

  async log(_leaseId: string, chunks: readonly LogChunk[]): Promise<void> {
    this.#trouble('log')
    this.logged.push([...chunks])
  }

  async report(reports: readonly RunReport[], next: LeaseCall | null): Promise<ReportAnswer> {
    this.calls.report++
    this.#trouble('report')
    const refusals = reports.map((report) => {
      const refusal = this.refusals.shift() ?? null
      if (refusal === null) this.reports.push('result' in report ? report.result : report.failure)
      return refusal
    })
    if (next !== null) this.polls.push(next)
    return { refusals, leases: next === null ? [] : this.work.splice(0, next.max) }
  }

  async release(): Promise<void> {
    this.#trouble('release')
    this.reports.push('released')
  }

  #trouble(verb: keyof Plane['troubles']): void {
    const error = this.troubles[verb].shift()
    if (error !== undefined) throw error
  }
}

export const HELD = { held: true, cancelRequested: false }

export const unavailable = () => new IchidoError('UNAVAILABLE', 'down')
