import { compare, type Workload } from '../contest/compare.ts'
import type { Latencies, Paced } from '../contest/contestant.ts'
import type { Entrant } from '../contest/entrant.ts'
import {
  EVERYONE,
  type Field,
  inTurns,
  labelsOf,
  type Name,
  NO_LIMITS,
  only,
  PEERS,
  withField,
} from '../contest/field.ts'
import { median, quantile } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const EVERY_MS = 20
const CALLERS = 64
/** Jobs a second, so that a contestant that has handled none yet does not wait for ever. */
const LEAST = 10
const WAITS: Omit<Paced, 'calls' | 'everyMs'> = { pace: 'prompt', handlerMs: 0, tells: false, backlog: 0, long: 0 }
const P50_TARGETS = { http: { bull: { most: 1.5 } }, ours: { bull: { most: 1 } } }
const P99_TARGETS = { http: { sql: { most: 1 } } }

/** From a submission until its handler begins: at 50 jobs a second, and at half the jobs that each contestant can take. */
export function latency(stage: Stage): Promise<Comparison[]> {
  return withField(stage, 'latency', EVERYONE, async (field) => [
    ...(await atFixedRate(stage, field)),
    ...(await atHalf(stage, field)),
  ])
}

async function atFixedRate({ size, say }: Stage, field: Field): Promise<Comparison[]> {
  const rate = 1000 / EVERY_MS
  say(`from submission to handler, ${rate} jobs a second: ${labelsOf(EVERYONE)}`)
  const order = { ...WAITS, calls: Math.ceil(size.calls / 2), everyMs: EVERY_MS }
  const found = await inTurns(size, field, (entrant) => entrant.paced(order))
  const what = `from submission to handler, ${rate}/s`
  return [
    ...quantiles({ what, found, q: 0.5, targets: P50_TARGETS }),
    ...quantiles({ what, found, q: 0.99, targets: P99_TARGETS }),
  ]
}

async function atHalf({ size, say }: Stage, field: Field): Promise<Comparison[]> {
  say(`from submission to handler, at half the maximum: ${labelsOf(EVERYONE)}`)
  const most = await inTurns(size, only(field, NO_LIMITS), (entrant) => entrant.saturate(CALLERS, size.roundMs))
  // The limits get the rate of what they limit.
  const maximum = { ...most, floor: most.ours, sqliteFloor: most.sqlite }
  const half = (entrant: Entrant, name: Name) => {
    const jobsPerMs = Math.max(LEAST, median(maximum[name] ?? [LEAST]) / 2) / 1000
    return entrant.paced({ ...WAITS, calls: Math.ceil(jobsPerMs * size.roundMs), everyMs: 1 / jobsPerMs })
  }
  const found = await inTurns(size, field, half)
  const what = 'from submission to handler, half of its maximum'
  // A slow queue has less to do at half of its maximum, so its row names the rate.
  const rateOf = (peer: (typeof PEERS)[number]) => `at ${Math.round(median(most[peer] ?? [0]) / 2)}/s`
  const notes = Object.fromEntries(PEERS.map((peer) => [peer, rateOf(peer)]))
  return [
    ...compare({ what: 'submit and handle at the same time, the maximum', unit: '/s', found: most }),
    ...quantiles({ what, found, q: 0.5, notes }),
    ...quantiles({ what, found, q: 0.99, notes }),
  ]
}

interface Quantiles extends Pick<Workload, 'what' | 'targets' | 'notes'> {
  found: Partial<Record<Name, Latencies[]>>
  q: number
}

function quantiles({ what, found, q, targets = {}, notes = {} }: Quantiles): Comparison[] {
  const values = Object.entries(found).map(([name, rounds]) => [name, rounds.map((r) => quantile(r.startsMs, q))])
  return compare({ what: `${what}, p${q * 100}`, unit: 'ms', found: Object.fromEntries(values), targets, notes })
}
