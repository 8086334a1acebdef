import type { JobEvent } from '@ichido/sdk/client'
import { errorText, type JobDetail } from '@ichido/sdk/protocol'
import { moveOf } from './event-text.ts'
import { oneLine } from './table.ts'

/** Why attempts of a job failed. No event says it, so the job is read, at most once for each of them. */
export class FailedAttempts {
  readonly #read: () => Promise<JobDetail | null>
  #job: JobDetail | null = null

  /** `read`: null when it cannot be read at the moment. */
  constructor(read: () => Promise<JobDetail | null>) {
    this.#read = read
  }

  /** Null when the event is not the end of an attempt that failed. */
  async whyOf(event: JobEvent): Promise<string | null> {
    const move = moveOf(event)
    if (move === null || !['FAILED', 'TIMED_OUT'].includes(move.state)) return null
    const known = this.#tell(move.attempt)
    if (known !== null) return known
    this.#job = await this.#read()
    return this.#tell(move.attempt)
  }

  #tell(attempt: number): string | null {
    const runs = this.#job?.runs ?? []
    const at = runs.findLastIndex((run) => run.attempt === attempt && run.error !== null)
    const [failed, next] = [runs[at], runs[at + 1]]
    if (at < 0 || failed?.error == null) return null
    const why = oneLine(errorText(failed.error))
    if (next === undefined || failed.finished_at === null) return why
    const waitSeconds = (Date.parse(next.run_at) - Date.parse(failed.finished_at)) / 1000
    return `${why} (the next attempt is due ${Math.max(0, Math.round(waitSeconds))} s later)`
  }
}
