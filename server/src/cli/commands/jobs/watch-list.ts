import { setTimeout as pause } from 'node:timers/promises'
import type { JobShape, Page } from '@ichido/sdk/protocol'
import { mayPass, UNREACHABLE_MAX_MS } from '../../output/follow.ts'
import { type Columns, table } from '../../output/print.ts'
import { out, outJson, redraw } from '../../output/terminal.ts'

const LOOK_MS = 1_000

/** Shows a list of jobs again and again, until Ctrl-C; survives restarts of the server. */
export async function watchList(
  read: () => Promise<Page<JobShape>>,
  columns: Columns<JobShape>,
  json = false,
): Promise<void> {
  const changes = new Changes()
  for (let lastAnswerMs = performance.now(); ; ) {
    try {
      const { data } = await read()
      lastAnswerMs = performance.now()
      const changed = changes.of(data)
      if (json) for (const job of changed) outJson(job)
      else if (process.stdout.isTTY) redraw(data.length === 0 ? 'No jobs.' : table(data, columns))
      else
        for (const job of changed)
          out(
            Object.values(columns)
              .map((cellOf) => cellOf(job))
              .join('  '),
          )
    } catch (error) {
      if (!mayPass(error) || performance.now() - lastAnswerMs > UNREACHABLE_MAX_MS) throw error
    }
    await pause(LOOK_MS)
  }
}

/** Tells which jobs of a page are new or have changed since the page before. */
export class Changes {
  #before = new Map<string, string>()

  /** The oldest first, as they happened. */
  of(jobs: readonly JobShape[]): JobShape[] {
    const now = new Map(jobs.map((job) => [job.job_id, `${job.state} ${job.attempt}`]))
    const changed = jobs.filter(({ job_id }) => now.get(job_id) !== this.#before.get(job_id)).toReversed()
    this.#before = now
    return changed
  }
}
