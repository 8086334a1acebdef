import pg from 'pg'
import { EmbeddedBus } from '../../server/src/bus/embedded.ts'
import { FIRST_ID } from '../../server/src/core/run/job.ts'
import { openStore } from '../../server/src/node/start-node.ts'
import { realWorld } from '../../server/src/node/world.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { DEFAULT_LIMITS } from '../../server/src/services/deps.ts'
import { createServices, type Services } from '../../server/src/services/index.ts'
import { silentMeter } from '../../server/src/services/system/meter.ts'
import { EVERY_JOB, type JobFilter } from '../../server/src/store/jobs/list-jobs.ts'
import type { Store } from '../../server/src/store/port.ts'
import { removeExpiredKeys } from '../../server/src/store/submission/keys.ts'
import { tryToLead } from '../../server/src/store/system/leadership.ts'
import { findDueJobs, removeJobs } from '../../server/src/store/system/retention.ts'
import { storageOf } from '../contest/contestant.ts'
import { drain } from '../contest/drain.ts'
import type { Entrant } from '../contest/entrant.ts'
import { EXPIRED, type Filling, fill, filledIdOf, filledKeyOf, kindOf, queueOf, teamOf, userOf } from '../fill.ts'
import { interleave, median, time } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Size, Stage } from '../stage.ts'
import { power } from './power.ts'

const PAGE = 50
const CALLERS = 64
const MOST = 1.3

interface Filled {
  url: string
  store: Store
  services: Services
  filling: Filling
}

/** The same work on a store with 10⁴ ended jobs and on one with up to 10⁷, in turns, on both engines. */
export async function growth(stage: Stage): Promise<Comparison[]> {
  return [...(await onEngine(stage, 'PostgreSQL')), ...(await onEngine(stage, 'SQLite'))]
}

async function onEngine(stage: Stage, engine: 'PostgreSQL' | 'SQLite'): Promise<Comparison[]> {
  const { size, say } = stage
  const storeFor = (name: string) => (engine === 'SQLite' ? stage.folder(name) : stage.database(name))
  say(`${engine}: filling one store with ${power(size.few)} jobs, another with ${power(size.many)}`)
  const few = await openFilled(await storeFor('growth_few'), size.few)
  const many = await openFilled(await storeFor('growth_many'), size.many)
  const row = (what: string, unit: Comparison['unit'], ours: number[], theirs: number[]): Comparison => ({
    what: `${engine}: ${what}, ${power(size.many)} jobs`,
    unit,
    ours,
    against: `${power(size.few)} jobs`,
    rival: 'self',
    theirs,
    target: unit === '/s' ? { least: 1 / MOST } : { most: MOST },
  })
  const rows: Comparison[] = []
  try {
    say(`${engine}: lists, leases and retention, with few jobs and with many`)
    for (const [what, call] of Object.entries(CALLS)) {
      const found = await inTurns(size, call, few, many)
      rows.push(row(`${what}, p50`, 'ms', found.many, found.few))
    }
    const removed = await interleave(
      { warmUps: 1, rounds: size.rounds },
      { few: await retain(few), many: await retain(many) },
    )
    rows.push(row(`removing ${RETAINED} jobs`, 'ms', removed.many, removed.few))
  } finally {
    for (const { store } of [few, many]) await store.close()
  }
  say(`${engine}: submitting and working off, with few jobs and with many`)
  const rates = await submitAndDrain(stage, few.url, many.url)
  return [
    ...rows,
    row(`submit with key, ${CALLERS} callers`, '/s', rates.many.submit, rates.few.submit),
    row('work off', '/s', rates.many.drain, rates.few.drain),
  ]
}

async function openFilled(url: string, count: number): Promise<Filled> {
  const store = await openStore({ storage: storageOf(url), world: realWorld, allowNoFsync: false })
  const filling = { count, nowMs: Date.now() }
  await fill(store, url, filling)
  if (store.engine === 'postgres') await vacuum(url)
  const bus = new EmbeddedBus()
  const services = createServices({ world: realWorld, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS })
  return { url, store, services, filling }
}

/** Autovacuum does the same some time after such a growth. */
async function vacuum(databaseUrl: string): Promise<void> {
  const client = new pg.Client(databaseUrl)
  await client.connect()
  await client.query('VACUUM (ANALYZE)')
  await client.end()
}

/** Returns the milliseconds of one call about job `n`, which exists in both stores and is not removed. */
type Call = (filled: Filled, n: number) => Promise<number>

const list =
  (filterOf: (n: number) => Partial<JobFilter>): Call =>
  ({ services }, n) =>
    time(async () => {
      const page = await services.jobs.list(LOCAL_ADMIN, { ...EVERY_JOB, ...filterOf(n) }, PAGE, null)
      if (page.data.length !== PAGE) throw new Error(`${page.data.length} jobs on a page of ${PAGE}`)
    })

const CALLS: Record<string, Call> = {
  list: list(() => ({})),
  'list by state': list((n) => ({ states: [n % 2 === 0 ? 'FAILED' : 'SUCCEEDED'] })),
  'list by queue': list((n) => ({ queue: queueOf(n) })),
  'list by kind': list((n) => ({ kind: kindOf(n) })),
  'list by user': list((n) => ({ userId: userOf(n) })),
  'list by label': list((n) => ({ label: { name: 'team', value: teamOf(n) } })),
  'get by id': ({ services, filling }, n) => time(() => services.jobs.get(LOCAL_ADMIN, filledIdOf(filling, n))),
  'look up a key': ({ services }, n) => time(() => services.keys.get(LOCAL_ADMIN, filledKeyOf(n))),
  lease: leaseOne,
}

async function leaseOne({ services: { submission, runs } }: Filled): Promise<number> {
  await submission.submit(LOCAL_ADMIN, { kind: 'leased', queue: 'leased' }, { key: null })
  const request = { queues: ['leased'], kinds: [], max: 1, waitMs: 0, startId: 'bench' }
  return time(async () => {
    const leases = await runs.lease('local-bench', request)
    if (leases.length !== 1) throw new Error('There was no job to lease')
  })
}

async function inTurns(size: Size, call: Call, few: Filled, many: Filled): Promise<{ few: number[]; many: number[] }> {
  // Visits jobs all over the store, in an order that no cache foresees.
  let step = 0
  const one = (filled: Filled) => () => {
    const kept = filled.filling.count - EXPIRED
    return call(filled, EXPIRED + 1 + ((++step * 7_919) % kept))
  }
  const measures = { few: one(few), many: one(many) }
  const found: { few: number[]; many: number[] } = { few: [], many: [] }
  for (let round = -1; round < size.rounds; round++) {
    const values = await interleave({ warmUps: 0, rounds: size.calls }, measures)
    if (round < 0) continue
    found.few.push(median(values.few))
    found.many.push(median(values.many))
  }
  return found
}

const RETAINED = 500
const TERM_MS = 3_600_000
const AGES = { jobMs: 0, letterMs: 0 }

/** Removes the oldest jobs, as the leader does when their keys have expired. */
async function retain({ store }: Filled): Promise<() => Promise<number>> {
  const holder = 'bench'
  const { epoch } = await store.write(tryToLead(holder, TERM_MS))
  const term = { holder, epoch }
  return () =>
    time(async () => {
      await store.write(removeExpiredKeys(term, RETAINED))
      const { due } = await store.read(findDueJobs({ queue: null, ageMs: 0, after: FIRST_ID }, AGES, RETAINED))
      await store.write(removeJobs(term, due, AGES))
    })
}

async function submitAndDrain({ size, packages, enter }: Stage, fewUrl: string, manyUrl: string) {
  const few = await enter({ program: 'ichido', url: fewUrl, packages })
  const many = await enter({ program: 'ichido', url: manyUrl, packages })
  const round = { callers: CALLERS, durationMs: size.roundMs, batch: 1, keyed: true }
  const both = (entrant: Entrant) => async () => {
    const submit = await entrant.run(round)
    const jobs = Math.ceil((submit * size.roundMs) / 1000)
    return { submit, drain: await drain([entrant], { jobs, pace: 'bulk', handlerMs: 0, filled: true }) }
  }
  try {
    const found = await interleave(size, { few: both(few), many: both(many) })
    const of = (rounds: { submit: number; drain: number }[]) => ({
      submit: rounds.map(({ submit }) => submit),
      drain: rounds.map(({ drain }) => drain),
    })
    return { few: of(found.few), many: of(found.many) }
  } finally {
    for (const entrant of [few, many]) await entrant.close()
  }
}
