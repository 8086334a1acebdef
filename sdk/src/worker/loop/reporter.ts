import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import type { WorkerDeps } from '../deps.ts'
import { type Clocks, type Mark, monotonicOnly } from './clocks.ts'
import type { LeaseCall, RunReport } from './transport.ts'

const REPORTS_PER_CALL = 250
/** While one call is being carried out there, the answer to another is being worked on here. */
const CALLS_MAX = 2
/** Fewer wait for the call that is under way. */
const WORTH_A_CALL = 100

interface Waiting {
  report: RunReport
  resolve(): void
  reject(error: unknown): void
}

/** What is to be leased along with reports. */
export interface NextWork {
  /** This lease is no longer in hand. */
  heard(leaseId: string): void
  /** Null: nothing now. */
  next(reporting: number): NextCall | null
}

export interface NextCall {
  call: LeaseCall
  /** Called once, when the call has ended; null: nobody knows what came of it. */
  settled(answer: { leases: LeaseShape[]; sent: Mark } | null): void
}

/** Reports that come up while others are on their way go together in the next call; it never waits for a timer. */
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

  /** Settles when it was recorded; what it is refused with, or why nobody heard it, is thrown. */
  send(report: RunReport): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ report, resolve, reject })
      this.#schedule()
    })
  }

  #schedule(): void {
    if (this.#scheduled || this.#calls >= CALLS_MAX) return
    this.#scheduled = true
    // What ends in this very moment goes along.
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
        // The call as a whole was refused, perhaps because of one report that is too large: each speaks for itself.
        for (const one of batch) await this.#call([one])
      }
    }
  }
}
