import { type Figures, type Gauge, placeIn, ROLL_UPS, SAMPLES } from '../../core/limits/series.ts'
import type { Deps } from '../../services/deps.ts'
import { ONLINE_MS } from '../../services/workers/workers.ts'
import { countDeadLetters } from '../../store/dead-letters/dead-letters.ts'
import { findQueues } from '../../store/leasing/queues.ts'
import { addSample, findSampled, rollUp } from '../../store/system/series.ts'
import type { Term } from '../../store/system/term.ts'
import { countWorkers } from '../../store/workers/workers.ts'

/** A failed sample is tried again after this time, so the minute is not lost. */
export const SAMPLE_INTERVAL_MS = 5_000
/** Queues beyond this are not counted. */
const SAMPLED_QUEUES_MAX = 1_000
const LETTERS_EACH_MAX = 100_000

type SampleOptions = Pick<Deps, 'store' | 'settings'>

/** Samples the gauges of all queues once a minute, and rolls old rows of the series up, for one term. */
export function createSample({ store, settings }: SampleOptions, term: Term): () => Promise<number> {
  async function sample(): Promise<void> {
    const { rows } = await store.read(findQueues(SAMPLED_QUEUES_MAX, null))
    const dead = await store.read(countDeadLetters(SAMPLED_QUEUES_MAX, LETTERS_EACH_MAX))
    const workers = await store.read(countWorkers(ONLINE_MS))
    const found = new Map<string, Gauges>()
    for (const { name, ready, delayed, running, oldest_ms } of rows) {
      found.set(name, { ...EMPTY, ready, delayed, running, oldest_waiting_ms: Math.max(0, oldest_ms ?? 0) })
    }
    for (const { queue, count } of dead.queues) {
      found.set(queue, { ...(found.get(queue) ?? EMPTY), dead_letters: count })
    }
    const all: Gauges = together([...found.values()])
    const whole = { ...all, workers_online: workers.online ?? 0, [SAMPLES]: 1 }
    await store.write(addSample(term, whole, queuesOf(found)))
  }

  return async () => {
    const { sampled, nextInMs } = await store.read(findSampled())
    if (!sampled) await sample()
    const max = settings.get('retain_batch_max')
    let more = false
    for (const step of ROLL_UPS) if ((await store.write(rollUp(term, step, max))) === max) more = true
    return more ? 0 : nextInMs
  }
}

type Gauges = Record<Exclude<Gauge, 'workers_online'>, number>

const EMPTY: Gauges = { ready: 0, delayed: 0, running: 0, oldest_waiting_ms: 0, dead_letters: 0 }

function together(each: readonly Gauges[]): Gauges {
  return each.reduce(
    (a, b) => ({
      ready: a.ready + b.ready,
      delayed: a.delayed + b.delayed,
      running: a.running + b.running,
      oldest_waiting_ms: Math.max(a.oldest_waiting_ms, b.oldest_waiting_ms),
      dead_letters: a.dead_letters + b.dead_letters,
    }),
    EMPTY,
  )
}

/** The fullest queues have rows of their own. A queue without a row was empty. */
function queuesOf(found: ReadonlyMap<string, Gauges>): Map<string, Figures> {
  const jobs = ({ ready, delayed, running, dead_letters }: Gauges) => ready + delayed + running + dead_letters
  const filled = [...found].filter(([, gauges]) => jobs(gauges) > 0).sort(([, a], [, b]) => jobs(b) - jobs(a))
  const places = new Map<string, Gauges[]>()
  for (const [queue, gauges] of filled) {
    const place = placeIn(places, queue)
    places.set(place, [...(places.get(place) ?? []), gauges])
  }
  return new Map([...places].map(([place, each]) => [place, { ...together(each) }]))
}
