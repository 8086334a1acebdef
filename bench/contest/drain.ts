import type { Pace } from './contestant.ts'
import type { Entrant } from './entrant.ts'

export interface Drain {
  jobs: number
  pace: Pace
  handlerMs: number
  /** The jobs wait already: nothing is submitted before. */
  filled?: boolean
}

/** A benchmark must not wait for ever for a contestant that has lost its worker. */
const STALLED_MS = 60_000

/** Lets these contestants, which share a store, handle jobs. Returns the jobs handled per second, by all of them. */
export async function drain(
  entrants: readonly Entrant[],
  { jobs, pace, handlerMs, filled = false }: Drain,
): Promise<number> {
  if (!filled) await entrants[0]?.fill(jobs)
  const counts = entrants.map(() => 0)
  const done = Promise.withResolvers<number>()
  const stalled = () => done.reject(new Error(`Of ${jobs} jobs only ${counts} were handled`))
  const timer = setTimeout(stalled, STALLED_MS)
  const began = performance.now()
  const working = entrants.map((entrant, i) =>
    entrant.work(pace, handlerMs, (count) => {
      counts[i] = count
      timer.refresh()
      if (counts.reduce((sum, each) => sum + each, 0) >= jobs) done.resolve(performance.now() - began)
    }),
  )
  try {
    await Promise.all(working)
    return (jobs * 1000) / (await done.promise)
  } finally {
    clearTimeout(timer)
    await Promise.all(entrants.map((entrant) => entrant.rest()))
  }
}
