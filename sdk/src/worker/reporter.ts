import { IchidoError, type LeaseShape } from '../protocol/index.ts'
import { type Clocks, type Mark, monotonicOnly } from './clocks.ts'
import type { WorkerDeps } from './deps.ts'
import type { LeaseCall, RunReport } from './transport.ts'

const REPORTS_PER_CALL = 200

interface Waiting {
  report: RunReport
  resolve(): void
  reject(error: unknown): void
}

/** What is to be leased along with a report, and what came of it. */
export interface NextWork {
  /** This lease is no longer in hand. */
  heard(leaseId: string): void
  /** Null: nothing now. Otherwise `settled` is called once, when the call has ended. */
  next(reporting: number): LeaseCall | null
  settled(answer: { leases: LeaseShape[]; sent: Mark } | null): void
}

/** Reports that come up while others are on their way go together in the next call; it never waits for a timer. */
export class Reporter {
  readonly #deps: WorkerDeps
  readonly #clocks: Clocks
  readonly #work: NextWork
  readonly #waiting: Waiting[] = []
  #sending = false

  constructor(deps: WorkerDeps, work: NextWork) {
    this.#deps = deps
    this.#clocks = deps.clocks ?? monotonicOnly(deps.world)
    this.#work = work
  }

  /** Settles when it was recorded; what it is refused with, or why nobody heard it, is thrown. */
  send(report: RunReport): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ report, resolve, reject })
      if (this.#sending) return
      this.#sending = true
      // What ends in this very moment goes along.
      queueMicrotask(() => void this.#drain())
    })
  }

  async #drain(): Promise<void> {
    while (this.#waiting.length > 0) await this.#call(this.#waiting.splice(0, REPORTS_PER_CALL))
    this.#sending = false
  }

  async #call(batch: Waiting[]): Promise<void> {
    const next = this.#work.next(batch.length)
    const sent = this.#clocks()
    try {
      const reports = batch.map(({ report }) => report)
      const { refusals, leases } = await this.#deps.transport.report(reports, next)
      batch.forEach(({ report, resolve, reject }, i) => {
        const refusal = refusals[i] ?? null
        if (refusal === null) {
          this.#work.heard(report.leaseId)
          resolve()
        } else reject(refusal)
      })
      if (next !== null) this.#work.settled({ leases, sent })
    } catch (error) {
      if (next !== null) this.#work.settled(null)
      if (batch.length === 1 || !(error instanceof IchidoError) || error.retryable) {
        for (const { reject } of batch) reject(error)
      } else {
        // The call as a whole was refused, perhaps because of one report that is too large: each speaks for itself.
        for (const one of batch) await this.#call([one])
      }
    }
  }
}
