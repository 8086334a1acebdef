import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { describe, expect, onTestFinished, test } from 'vitest'
import { bareDatabase } from '../../../../scripts/testing/services.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import { Reaper, seize } from '../../testing/nodes/reaper.ts'
import { again, BY, content, define, EVERY_SECOND, ledger, setDue } from '../../testing/nodes/ticker.ts'
import { defineOn } from '../../testing/nodes/triggers.ts'
import { begin, lead, progress, redriver, retry } from '../../testing/store/dead-letters.ts'
import { removeKeys } from '../../testing/store/retention.ts'
import { text } from '../../testing/store/rows.ts'
import { failed, Scene } from '../../testing/store/scene.ts'
import { openNode, sql, unique } from '../../testing/store/store.ts'
import { createToken, listTokens, readAuthRequired } from '../access/access.ts'
import { DATABASE_FILE, openSqlite } from '../engines/sqlite/sqlite.ts'
import { publishBatch } from '../events/publish.ts'
import { findJob } from '../jobs/read-jobs.ts'
import { findQuota, setQuota } from '../limits/quotas.ts'
import { type Store, StoreRefused } from '../port.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import { beginBackfill, findBackfill, runningBackfills, stepBackfill } from '../schedules/backfills.ts'
import {
  createDefinition,
  deleteDefinition,
  findDefinition,
  pauseDefinition,
  resumeDefinition,
  updateDefinition,
} from '../schedules/definitions.ts'
import { findWaitingTicks, makeTicks, tryWaitingTicks } from '../schedules/ticks.ts'
import { extendKeyTo, findKeys } from '../submission/keys.ts'
import { consumeSlot, releaseSlot } from '../submission/reservations.ts'
import { turnAlerts } from '../system/alerts.ts'
import { addMinuteCounts, findMinuteCounts, removeMinuteCounts } from '../system/minute-counts.ts'
import { addCounts } from '../system/promise-counters.ts'
import {
  findDueJobs,
  removeAudit,
  removeEvents,
  removeJobs,
  removeReservations,
  removeTriggers,
} from '../system/retention.ts'
import { changeSetting } from '../system/settings.ts'
import type { Term } from '../system/term.ts'
import {
  dropWaitingTriggers,
  findUnprocessed,
  findWaitingTriggers,
  processTriggers,
  tryWaitingTriggers,
} from '../triggers/process-triggers.ts'
import { recordTriggers } from '../triggers/triggers.ts'
import { MIGRATIONS, SCHEMA_VERSION } from './index.ts'
import { schemaVerdict } from './migration.ts'

/** How each engine gives access to a database outside of the store. */
interface Place {
  open(): Promise<Store>
  /** Runs SQL outside of any store; tables are written `ichido.name`. */
  change(text: string): Promise<void>
  tables(): Promise<string[]>
  setVersion(version: number): Promise<void>
}

const PLACES = { sqlite: sqlitePlace, postgres: postgresPlace }

describe.each(['sqlite', 'postgres'] as const)('%s', (engine) => {
  test('a new database gets every migration, and opening it again changes nothing', async () => {
    const place = await PLACES[engine]()
    const store = await place.open()
    expect((await store.health()).schemaVersion).toBe(SCHEMA_VERSION)
    const applied = await sql(store, 'SELECT * FROM ichido.schema_migrations ORDER BY version')
    expect(applied.map(({ version, name }) => [version, name])).toEqual(MIGRATIONS.map((m) => [m.version, m.name]))
    const tables = await place.tables()
    const scene = new Scene(store)
    const jobId = await scene.submitted()
    await store.close()

    const again = await place.open()
    expect(await sql(again, 'SELECT * FROM ichido.schema_migrations ORDER BY version')).toEqual(applied)
    expect(await place.tables()).toEqual(tables)
    expect(await again.read(findJob(jobId))).not.toBeNull()
    await again.close()
  })

  test('a database one version ahead works, and its new columns are left alone', async () => {
    const place = await PLACES[engine]()
    await (await place.open()).close()
    await goAhead(place)
    const store = await place.open()
    expect((await store.health()).schemaVersion).toBe(SCHEMA_VERSION + 1)
    await useEverything(store)
    await store.close()
  })

  test('a database two versions ahead is refused, and nothing is changed', async () => {
    const place = await PLACES[engine]()
    await (await place.open()).close()
    await place.setVersion(SCHEMA_VERSION + 2)
    await expect(place.open()).rejects.toThrow(
      `The database is at schema version ${SCHEMA_VERSION + 2}; this Ichido knows version ${SCHEMA_VERSION} and can work with at most ${SCHEMA_VERSION + 1}. Upgrade this node, or restore a backup`,
    )
    await place.setVersion(SCHEMA_VERSION)
    await (await place.open()).close()
  })

  test.each([1, 6])('a database of version %i from before the first release is refused', async (version) => {
    const place = await PLACES[engine]()
    await place.change('CREATE TABLE ichido.schema_migrations (version integer, name text, applied_at bigint)')
    await place.change("INSERT INTO ichido.schema_migrations VALUES (1, 'foundation', 0)")
    await place.setVersion(version)
    const opened = place.open()
    await expect(opened).rejects.toThrow(StoreRefused)
    await expect(opened).rejects.toThrow('from before the first release, and this version cannot read its tables')
    expect(await place.tables()).toEqual(['schema_migrations'])
  })

  test('a migration that is interrupted leaves nothing behind', async () => {
    const place = await PLACES[engine]()
    await place.change('CREATE TABLE ichido.alerts (id text)')
    await expect(place.open()).rejects.toThrow(/alerts.*already exists/)
    expect(await place.tables()).toEqual(['alerts'])
    await place.change('DROP TABLE ichido.alerts')
    const store = await place.open()
    expect((await store.health()).schemaVersion).toBe(SCHEMA_VERSION)
    await store.close()
  })
})

describe('postgres, several nodes', () => {
  test('that open a new database at the same time all find it complete', async () => {
    const { url, leave } = await bareDatabase()
    const nodes = await Promise.all(Array.from({ length: 6 }, () => openNode(url)))
    for (const node of nodes) expect((await node.health()).schemaVersion).toBe(SCHEMA_VERSION)
    const [first] = nodes
    expect(first && (await sql(first, 'SELECT * FROM ichido.schema_migrations'))).toHaveLength(MIGRATIONS.length)
    for (const node of nodes) await node.close()
    await leave()
  })

  test('that are running continue while the next version migrates', async () => {
    const place = await postgresPlace()
    const node = await place.open()
    await useEverything(node)
    await goAhead(place)
    await useEverything(node)
    await node.close()
  })

  test('stay in their schema: two in one database do not see each other', async () => {
    const { url, leave } = await bareDatabase()
    const [a, b] = [await openNode(url, { schema: 'one' }), await openNode(url, { schema: 'two' })]
    const jobId = await new Scene(a).submitted()
    expect([await a.read(findJob(jobId)), await b.read(findJob(jobId))]).toMatchObject([{ job: {} }, null])
    await expect(openNode(url, { schema: 'Robert"; DROP' })).rejects.toThrow('DATABASE_SCHEMA must be a plain')
    await a.close()
    await b.close()
    await leave()
  })
})

test('the verdict on a version', () => {
  expect([0, 4, 5, 6, 7, 99].map((found) => schemaVerdict(found, 5))).toEqual([
    'migrate',
    'migrate',
    'current',
    'ahead',
    'refuse',
    'refuse',
  ])
})

test('versions count up from 1 without a gap', () => {
  expect(MIGRATIONS.map(({ version }) => version)).toEqual(MIGRATIONS.map((_, i) => i + 1))
})

/** Changes that the next version may make: more columns, more tables. */
async function goAhead(place: Place): Promise<void> {
  for (const table of await place.tables()) {
    if (table !== 'schema_migrations') await place.change(`ALTER TABLE ichido.${table} ADD COLUMN of_the_future text`)
  }
  await place.change('CREATE TABLE ichido.of_the_future (id text)')
  await place.setVersion(SCHEMA_VERSION + 1)
}

/** Every statement that writes, and those that read whole rows. */
async function useEverything(store: Store): Promise<void> {
  const scene = new Scene(store)
  await store.write(setQuota(scene.userId, { maxConcurrent: 9, costLimitMicros: 1_000_000, period: 'day' }))
  const jobId = await scene.submitted({
    key: 'k',
    labels: { a: 'b' },
    estimatedCostMicros: 5,
    consumedReservationId: crypto.randomUUID(),
  })
  const lease = await scene.leased()
  await scene.heartbeat(lease)
  await scene.start(lease)
  await scene.start(lease)
  await scene.fail(lease)
  await scene.age(60_000)
  await scene.finish(await scene.leased({ startId: 's' }))
  expect(await scene.state(jobId)).toBe('SUCCEEDED')
  const dead = await scene.running()
  await store.write(finishBatch([scene.endItem(dead, failed(undefined, false))]))
  const redrive = await store.write(begin(scene, { jobIds: [dead.jobId] }))
  const tick = redriver(store, await lead(store))
  for (let i = 0; i < 2; i++) await tick()
  expect(await progress(store, redrive)).toMatchObject({ state: 'done', done: 1 })
  await scene.cancel(dead.jobId)
  expect(await store.write(retry(dead.jobId))).toMatchObject({ kind: 'retried' })
  await scene.cancel(dead.jobId)

  const running = await scene.running()
  await scene.cancel(running.jobId)
  const waiting = await scene.submitted()
  expect(await scene.cancel(waiting)).toEqual({ kind: 'canceled', queue: scene.queue, jobKind: 'work' })
  const reservations = [crypto.randomUUID(), crypto.randomUUID(), crypto.randomUUID()]
  for (const id of reservations) await scene.reserve(60_000, id)
  await store.write(consumeSlot(reservations[0] ?? '', scene.userId, jobId))
  await store.write(releaseSlot(reservations[1] ?? '', scene.userId))
  const published = { ...scene.startItem(running), events: [{ stage: 's', seq: 1, data: '1' }] }
  expect(await store.write(publishBatch([published], true))).toMatchObject([{ kind: 'stored' }])
  await scene.submitted()
  await scene.leased()
  await scene.age(600_000)
  expect(await store.write(releaseSlot(reservations[2] ?? '', scene.userId))).toMatchObject({ kind: 'refused' })
  const reaper = await Reaper.of(store)
  await reaper.reapAll()
  expect(reaper.ended).toHaveLength(1)
  const [key] = await store.read(findKeys('k', scene.userId))
  if (key) await store.write(extendKeyTo(key, 1))
  const counts = { duplicatesRefused: 1, replaysServed: 1, staleWritesFenced: 1 }
  const batch = { nodeId: crypto.randomUUID(), batchN: 1, counts: new Map([[jobId, counts]]) }
  for (let i = 0; i < 2; i++) await store.write(addCounts(batch))
  await store.write(addMinuteCounts({ minute: 1, nodeId: 'n', batchN: 1, counts: new Map([['dead_letters', 1]]) }))
  const { sums } = await store.read(findMinuteCounts(Date.now()))
  expect(sums.length).toBeGreaterThan(0)
  const term = await seize(store)
  await store.write(removeMinuteCounts(term, 1, 10))
  expect(await store.write(removeEvents(term, [jobId], 1))).toMatchObject({ removed: expect.any(Number) })
  await store.write(removeReservations(term, 1, 10))
  await store.write(removeAudit(term, 1, 1))
  await store.write(removeKeys(10))
  await store.write(removeJobs(term, [waiting], { jobMs: 1, letterMs: 1 }))
  expect(await store.read(findJob(waiting))).toBeNull()
  await store.read(findDueJobs({ queue: null, ageMs: 1, after: FIRST_ID }, { jobMs: 1, letterMs: 1 }, 10))
  const name = unique('definition')
  const made = { id: crypto.randomUUID(), name, userId: scene.userId, content: content(null, { payload: '1' }) }
  expect(await store.write(createDefinition(made, BY()))).toMatchObject({ kind: 'created' })
  expect(await store.read(findDefinition(name))).toMatchObject({ payload: '1' })
  await useSchedule(store, term, scene.userId)
  await useTriggers(store, term)
  await store.write(changeSetting('reap_batch_max', 7, BY()))
  await store.write(changeSetting('reap_batch_max', null, BY()))
  const open = [{ alertId: crypto.randomUUID(), rule: 'loop_late', subject: unique('loop'), message: 'm' } as const]
  expect(await store.write(turnAlerts(term, { open, close: [], keepMs: 1, batchMax: 9 }))).toMatchObject({
    opened: [{ rule: 'loop_late' }],
  })
  const token = {
    tokenId: crypto.randomUUID(),
    tokenHash: unique('hash'),
    userId: scene.userId,
    role: 'viewer',
    name: 'n',
    ttlMs: 1,
  } as const
  await store.write(createToken(token))
  expect(await store.read(listTokens())).not.toEqual([])
  expect(await store.read(readAuthRequired())).toBe(true)
  expect((await store.read(findQuota(scene.userId))).activeReservations).toBe(0)
  expect((await store.read(findJob(jobId)))?.runs).toHaveLength(2)
}

async function sqlitePlace(): Promise<Place> {
  const dataDir = mkdtempSync(join(tmpdir(), 'ichido-migrations-'))
  onTestFinished(() => rmSync(dataDir, { recursive: true }))
  async function withDatabase<T>(use: (db: DatabaseSync) => T): Promise<T> {
    const db = new DatabaseSync(join(dataDir, DATABASE_FILE))
    try {
      return use(db)
    } finally {
      db.close()
    }
  }
  return {
    open: async () => openSqlite({ dataDir, now: () => Date.now() }),
    change: (text) => withDatabase((db) => db.exec(text.replaceAll('ichido.', ''))),
    tables: () =>
      withDatabase((db) =>
        db
          .prepare(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`)
          .all()
          .map((row) => String(row.name)),
      ),
    setVersion: (version) => withDatabase((db) => db.exec(`PRAGMA user_version = ${version}`)),
  }
}

async function postgresPlace(): Promise<Place> {
  const { url, leave } = await bareDatabase()
  const client = new pg.Client(url)
  await client.connect()
  onTestFinished(async () => {
    await client.end()
    await leave()
  })
  return {
    open: () => openNode(url),
    async change(text) {
      await client.query('CREATE SCHEMA IF NOT EXISTS ichido')
      await client.query(text)
    },
    async tables() {
      const { rows } = await client.query(`SELECT tablename FROM pg_tables WHERE schemaname = 'ichido' ORDER BY 1`)
      return rows.map((row) => text(row, 'tablename'))
    },
    async setVersion(version) {
      await client.query('DELETE FROM ichido.schema_migrations WHERE version > $1', [Math.min(version, SCHEMA_VERSION)])
      if (version > SCHEMA_VERSION) {
        await client.query(`INSERT INTO ichido.schema_migrations VALUES ($1, 'of the future', 0)`, [version])
      }
    },
  }
}

/** A tick, one that waits, a backfill, and every change of a definition. */
async function useSchedule(store: Store, term: Term, userId: string): Promise<void> {
  const maker = { newId: () => crypto.randomUUID(), leased: [] }
  const definition = await define(store, { overlap: 'queue_one' }, { userId })
  await setDue(store, definition, 1_000)
  const plan = { make: [1_000, 2_000], skip: [], skipAll: null, nextTickAtMs: 3_000 }
  const ticks = await store.write(makeTicks(term, [{ definition, dueAtMs: 1_000, plan }], maker))
  expect(ticks.map(({ outcome }) => outcome)).toEqual(['job', 'waiting_overlap'])
  const first = ticks[0]?.jobId ?? ''
  await sql(store, "UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE job_id = $1", first)
  const waiting = (await store.read(findWaitingTicks(FIRST_ID, 10))).filter((one) => one.definitionId === definition.id)
  expect(await store.write(tryWaitingTicks(term, waiting, maker))).toMatchObject([{ outcome: 'job' }])
  await sql(store, "UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE definition_id = $1", definition.id)

  const backfillId = crypto.randomUUID()
  const range = { fromMs: 5_000, toMs: 6_000, schedule: EVERY_SECOND, matched: 1 }
  await store.write(beginBackfill({ backfillId, definition, ...range }, BY()))
  for (const ticks of [[5_000], []]) {
    const running = (await store.read(runningBackfills(10, FIRST_ID))).find(
      ({ backfill }) => backfill.backfillId === backfillId,
    )
    if (running === undefined) throw new Error('It does not run')
    await store.write(stepBackfill(term, { ...running, ticks }, maker))
  }
  expect(await store.read(findBackfill(backfillId))).toMatchObject({ state: 'done', made: 1 })

  const { name } = definition
  expect(await store.write(updateDefinition(name, 1, content({}), BY()))).toMatchObject({ kind: 'updated' })
  expect(await store.write(pauseDefinition(name, BY()))).toMatchObject({ version: 3 })
  expect(await store.write(resumeDefinition(name, BY()))).toMatchObject({ version: 4 })
  expect(await again(store, definition)).toMatchObject({ pausedAtMs: null })
  expect(await store.write(deleteDefinition(name, BY()))).toBe(true)
  expect((await ledger(store, definition)).length).toBeGreaterThanOrEqual(3)
}

/** A trigger that makes a job, one that waits and is made, one that waits for nothing, and none of them kept. */
async function useTriggers(store: Store, term: Term): Promise<void> {
  const maker = { newId: () => crypto.randomUUID(), leased: [] }
  const [definition, deleted] = [await defineOn(store), await defineOn(store)]
  const process = async (...topics: string[]) => {
    const items = topics.map((topic) => ({ triggerId: crypto.randomUUID(), topic }))
    const sent = { userId: 'u', operates: true, data: '{}' }
    await store.write(recordTriggers(items.map((item) => ({ ...item, ...sent, dedupeKey: unique('key') }))))
    const { triggers, definitions } = await store.read(findUnprocessed(10))
    const userIds = definitions.map(({ userId }) => userId)
    return (await store.write(processTriggers(term, { triggers, userIds }, 1_000, maker))).made
  }
  expect(await process(definition.on.topic)).toMatchObject([{ outcome: 'job' }])
  for (const { name } of [definition, deleted]) await store.write(pauseDefinition(name, BY()))
  expect(await process(definition.on.topic, deleted.on.topic)).toMatchObject(
    Array(2).fill({ outcome: 'waiting_pause' }),
  )
  await store.write(resumeDefinition(definition.name, BY()))
  await store.write(deleteDefinition(deleted.name, BY()))
  const waiting = (await store.read(findWaitingTriggers(FIRST_ID, 10))).filter(({ userId }) => userId !== null)
  expect(await store.write(tryWaitingTriggers(term, waiting, 1_000, maker))).toMatchObject([{ outcome: 'job' }])
  expect(await store.write(dropWaitingTriggers(term, deleted.id, 10))).toBe(1)
  await sql(store, 'UPDATE ichido.triggers SET settled_at = 1')
  expect(await store.write(removeTriggers(term, 1_000, 10))).toBe(3)
}
