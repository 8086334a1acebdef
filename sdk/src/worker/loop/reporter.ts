import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { type Clocks, type Mark, monotonicOnly } from '../../world.ts'
import type { LeaseCall, RunReport, WorkerDeps } from './ports.ts'

const REPORTS_PER_CALL = 500
/** While the control plane executes one call, the worker handles the answer to the other. */
const CALLS_MAX = 2
/** With fewer reports, the second call waits for the first. */
const WORTH_A_CALL = 100

interface Waiting {
  report: RunReport
  resolve(): void
  reject(error: unknown): void
}

/** Decides what to lease together with reports. */
interface NextWork {
  /** The report of this lease was accepted. */
  heard(leaseId: string): void
  /** Null: lease nothing. */
  next(reporting: number): NextCall | null
}

export interface NextCall {
  call: LeaseCall
  /** Called once, when the call has ended; null: its result is unknown. */
  settled(answer: { leases: LeaseShape[]; sent: Mark } | null): void
}

/** Puts the reports that arrive during a call into the next call; it never waits for a timer. */
export class Reporter {
  readonly #deps: WorkerDeps
  readonly #clocks: Clocks
  readonly #work: NextWork
  #waiting: Waiting[] = []
  #scheduled = false
  #calls = 0

  constructor(deps: WorkerDeps, work: NextWork) {
    this.#deps = deps
    this.#clocks = deps.clocks ?? monotonicOnly(deps.world)
    this.#work = work
  }

  /** Resolves when the report is recorded; rejects with the refusal or the outage. */
  send(report: RunReport): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ report, resolve, reject })
      this.#schedule()
    })
  }

  #schedule(): void {
    if (this.#scheduled || this.#calls >= CALLS_MAX) return
    this.#scheduled = true
    // Includes the runs that end in the same turn.
    queueMicrotask(() => {
      this.#scheduled = false
      while (this.#waiting.length >= (this.#calls === 0 ? 1 : WORTH_A_CALL) && this.#calls < CALLS_MAX)
        void this.#next()
    })
  }

  async #next(): Promise<void> {
    const batch = this.#waiting.slice(0, REPORTS_PER_CALL)
    this.#waiting = this.#waiting.slice(REPORTS_PER_CALL)
    this.#calls++
    await this.#call(batch)
    this.#calls--
    this.#schedule()
  }

  async #call(batch: Waiting[]): Promise<void> {
    const next = this.#work.next(batch.length)
    const sent = this.#clocks()
    try {
      const reports = batch.map(({ report }) => report)
      const { refusals, leases } = await this.#deps.transport.report(reports, next?.call ?? null)
      batch.forEach(({ report, resolve, reject }, i) => {
        const refusal = refusals[i] ?? null
        if (refusal === null) {
          this.#work.heard(report.leaseId)
          resolve()
        } else reject(refusal)
      })
      next?.settled({ leases, sent })
    } catch (error) {
      next?.settled(null)
      if (batch.length === 1 || !(error instanceof IchidoError) || error.retryable) {
        for (const { reject } of batch) reject(error)
      } else {
        // The call was refused as a whole, perhaps because one report is too large: each report is sent separately.
        for (const waiting of batch) await this.#call([waiting])
      }
    }
  }
}
