import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { EmbeddedBus } from '../../server/src/bus/embedded.ts'
import { openStore, type Storage } from '../../server/src/node/start-node.ts'
import { realWorld } from '../../server/src/node/world.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { DEFAULT_LIMITS } from '../../server/src/services/deps.ts'
import { createServices, type Services } from '../../server/src/services/index.ts'
import { silentMeter } from '../../server/src/services/system/meter.ts'
import { EVERY_JOB, type JobFilter } from '../../server/src/store/jobs/list-jobs.ts'
import {
  type Filling,
  fill,
  filledIdOf,
  filledKeyOf,
  fillWithoutIndexes,
  kindOf,
  queueOf,
  teamOf,
  userOf,
} from '../fill.ts'
import { interleave, median, time } from '../measure.ts'
import type { Comparison } from '../report.ts'
import type { Stage } from '../stage.ts'

const FEW = 10_000
const MANY = 1_000_000
const PAGE = 50

/** Reads alternately from a store with 10⁴ jobs and from one with 10⁶, on the same engine. */
export async function growth(stage: Stage): Promise<Comparison[]> {
  return [...(await onPostgres(stage)), ...(await onSqlite(stage))]
}

async function onPostgres({ size, database, say }: Stage): Promise<Comparison[]> {
  const open = async (name: string, count: number) => {
    const databaseUrl = await database(name)
    return { databaseUrl, ...(await openFilled({ databaseUrl }, count, fillWithoutIndexes)) }
  }
  say(`PostgreSQL: filling one database with ${FEW} jobs, another with ${MANY}`)
  const few = await open('growth_few', FEW)
  const many = await open('growth_many', MANY)
  try {
    for (const { databaseUrl } of [few, many]) await vacuum(databaseUrl)
    return await compare('PostgreSQL', few, many, size.calls, size.rounds, say)
  } finally {
    for (const { services } of [few, many]) await services.deps.store.close()
  }
}

async function onSqlite({ size, say }: Stage): Promise<Comparison[]> {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-bench-'))
  say(`SQLite: filling one file with ${FEW} jobs, another with ${MANY}`)
  const few = await openFilled({ dataDir: join(folder, 'few') }, FEW, fill)
  const many = await openFilled({ dataDir: join(folder, 'many') }, MANY, fill)
  try {
    return await compare('SQLite', few, many, size.calls, size.rounds, say)
  } finally {
    for (const { services } of [few, many]) await services.deps.store.close()
    rmSync(folder, { recursive: true })
  }
}

interface Filled {
  services: Services
  filling: Filling
}

async function openFilled(storage: Storage, count: number, how: typeof fill): Promise<Filled> {
  const store = await openStore({ storage, world: realWorld, allowNoFsync: false })
  const filling = { count, nowMs: Date.now() }
  await store.write(how(filling))
  const bus = new EmbeddedBus()
  return {
    services: createServices({ world: realWorld, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS }),
    filling,
  }
}

/** Autovacuum does the same some time after such a growth. */
async function vacuum(databaseUrl: string): Promise<void> {
  const client = new pg.Client(databaseUrl)
  await client.connect()
  await client.query('VACUUM (ANALYZE)')
  await client.end()
}

type Reading = (filled: Filled, n: number) => Promise<unknown>

const list =
  (filterOf: (n: number) => Partial<JobFilter>): Reading =>
  async ({ services }, n) => {
    const page = await services.jobs.list(LOCAL_ADMIN, { ...EVERY_JOB, ...filterOf(n) }, PAGE, null)
    if (page.data.length !== PAGE) throw new Error(`${page.data.length} jobs on a page of ${PAGE}`)
  }

/** The job `n` exists in both stores. */
const READINGS: Record<string, Reading> = {
  list: list(() => ({})),
  'list by state': list((n) => ({ states: [n % 2 === 0 ? 'FAILED' : 'SUCCEEDED'] })),
  'list by queue': list((n) => ({ queue: queueOf(n) })),
  'list by kind': list((n) => ({ kind: kindOf(n) })),
  'list by user': list((n) => ({ userId: userOf(n) })),
  'list by label': list((n) => ({ label: { name: 'team', value: teamOf(n) } })),
  'get by id': ({ services, filling }, n) => services.jobs.get(LOCAL_ADMIN, filledIdOf(filling, n)),
  'look up a key': ({ services }, n) => services.keys.get(LOCAL_ADMIN, filledKeyOf(n)),
}

async function compare(
  engine: string,
  few: Filled,
  many: Filled,
  calls: number,
  rounds: number,
  say: Stage['say'],
): Promise<Comparison[]> {
  say(`${engine}: listing and reading, with few jobs and with many`)
  const comparisons: Comparison[] = []
  for (const [what, read] of Object.entries(READINGS)) {
    const ours: number[] = []
    const theirs: number[] = []
    // Visits jobs all over the store, in an order that no cache foresees.
    let step = 0
    const one = (filled: Filled) => () => {
      const n = 1 + ((++step * 7_919) % filled.filling.count)
      return time(() => read(filled, n))
    }
    const measures = { few: one(few), many: one(many) }
    await interleave({ warmUps: 0, rounds: calls }, measures)
    for (let round = 0; round < rounds; round++) {
      const found = await interleave({ warmUps: 0, rounds: calls }, measures)
      ours.push(median(found.many))
      theirs.push(median(found.few))
    }
    comparisons.push({
      what: `${engine}: ${what}, 10⁶ jobs, p50`,
      unit: 'ms',
      ours,
      against: '10⁴ jobs',
      theirs,
      target: { most: 1.3 },
    })
  }
  return comparisons
}
