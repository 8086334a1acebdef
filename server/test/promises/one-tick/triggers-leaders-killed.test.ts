import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import type { Definition } from '../../../src/core/schedule/definition.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import {
  deleteDefinition,
  pauseDefinition,
  resumeDefinition,
  updateDefinition,
} from '../../../src/store/schedules/definitions.ts'
import { type TestApp, testApp } from '../../../src/testing/http/app.ts'
import { NodeProcess } from '../../../src/testing/nodes/node-process.ts'
import { BY, content } from '../../../src/testing/nodes/ticker.ts'
import { defineOn } from '../../../src/testing/nodes/triggers.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/** Real processes on PostgreSQL: whatever happens to the leader, each pair of definition and trigger has one job. */

const TRIGGERS = size(200, 10_000)
const KILLS = size(1, 10)
const TOPIC = 'orders'
const IN_ONE_CALL = 20

let database: FreshDatabase
let store: PostgresStore
const clients: TestApp[] = []
/** The running nodes. */
const nodes: NodeProcess[] = []

beforeAll(async () => {
  database = await freshDatabase()
  store = await openNode(database.url)
  // Small batches let a kill interrupt the leader in the middle of its work.
  await sql(store, `INSERT INTO ichido.settings VALUES ('trigger_batch_max', '50', 0, 'tester')`)
  for (let i = 0; i < 2; i++) {
    clients.push(await testApp('postgres', { opened: { store: await openNode(database.url), remove: async () => {} } }))
  }
  await Promise.all([start(), start(), start()])
})
afterAll(async () => {
  for (const node of nodes) await node.end('SIGKILL')
  for (const client of clients) await client.close()
  await store.close()
  await database.leave()
})

async function start(): Promise<void> {
  nodes.push(await NodeProcess.start(database.url))
}

async function replaceLeader(): Promise<void> {
  const leader = await until('a leader', async () => nodes.find(({ standing }) => standing?.leads))
  nodes.splice(nodes.indexOf(leader), 1)
  await leader.end('SIGKILL')
  await start()
}

async function processed(): Promise<number> {
  const [row] = await sql(store, 'SELECT count(*) AS count FROM ichido.triggers WHERE processed_at IS NOT NULL')
  return Number(row?.count)
}

/** Sends every trigger, in calls of this size, each call twice. */
async function sendAll(client: TestApp, inOneCall: number): Promise<void> {
  for (let first = 0; first < TRIGGERS; first += inOneCall) {
    const numbers = Array.from({ length: Math.min(inOneCall, TRIGGERS - first) }, (_, i) => first + i)
    const triggers = numbers.map((n) => ({ topic: TOPIC, dedupe_key: `order-${n}`, data: { n } }))
    for (let time = 0; time < 2; time++) {
      const answer = await client.call('POST', '/v1/triggers', { body: { triggers } })
      if (answer.status >= 300) throw new Error(answer.text)
    }
  }
}

async function counts({ id }: Definition) {
  const [row] = await sql(
    store,
    `SELECT (SELECT count(*) FROM ichido.jobs WHERE definition_id = $1) AS jobs,
      (SELECT count(DISTINCT payload) FROM ichido.jobs WHERE definition_id = $1) AS payloads,
      (SELECT count(*) FROM ichido.trigger_outcomes WHERE definition_id = $1 AND outcome = 'job') AS made,
      (SELECT count(*) FROM ichido.trigger_outcomes WHERE definition_id = $1 AND outcome = 'skipped') AS skipped,
      (SELECT count(*) FROM ichido.trigger_outcomes WHERE definition_id = $1) AS entries`,
    id,
  )
  return row
}

test('triggers sent twice by two clients create one job each while leaders are killed', async () => {
  const payload = JSON.stringify({ n: { $from: 'n' } })
  const define = (rule: object = {}) => defineOn(store, { topic: TOPIC, ...rule }, { payload })
  const [steady, few, kept] = [await define(), await define({ where: { n: 4 } }), await define()]
  const [skipping, changed, deleted] = [await define({ whenPaused: 'skip' }), await define(), await define()]
  const sending = Promise.all(clients.map((client, i) => sendAll(client, IN_ONE_CALL + i)))

  const pausing = [kept, skipping]
  const after = content(null, { on: changed.on, payload: JSON.stringify({ n: { $from: 'n' }, changed: true }) })
  /** The actions, each with the fraction of processed triggers at which it happens. */
  const timeline: { at: number; act: () => Promise<unknown> }[] = [
    { at: 0.1, act: () => Promise.all(pausing.map(({ name }) => store.write(pauseDefinition(name, BY())))) },
    { at: 0.4, act: () => store.write(updateDefinition(changed.name, null, after, BY())) },
    { at: 0.5, act: () => store.write(deleteDefinition(deleted.name, BY())) },
    { at: 0.75, act: () => Promise.all(pausing.map(({ name }) => store.write(resumeDefinition(name, BY())))) },
    ...Array.from({ length: KILLS }, (_, i) => ({ at: (i + 0.6) / KILLS, act: replaceLeader })),
  ]
  for (const { at, act } of timeline.sort((a, b) => a.at - b.at)) {
    await until(`${at} of the triggers`, async () => (await processed()) >= TRIGGERS * at)
    await act()
  }
  await sending
  await until('all triggers to be processed', async () => {
    const left = await sql(store, 'SELECT id FROM ichido.triggers WHERE settled_at IS NULL LIMIT 1')
    return left.length === 0
  })

  expect(await sql(store, 'SELECT count(*) AS count FROM ichido.triggers')).toEqual([{ count: TRIGGERS }])
  const all = { jobs: TRIGGERS, payloads: TRIGGERS, made: TRIGGERS, skipped: 0, entries: TRIGGERS }
  for (const definition of [steady, kept, changed]) expect(await counts(definition)).toEqual(all)
  expect(await counts(few)).toMatchObject({ jobs: 1, made: 1, entries: 1 })
  const [paused, gone] = [await counts(skipping), await counts(deleted)]
  expect(paused).toMatchObject({ entries: TRIGGERS, jobs: paused?.made, payloads: paused?.made })
  expect(gone).toMatchObject({ jobs: gone?.made, payloads: gone?.made, entries: gone?.made, skipped: 0 })
  for (const made of [paused?.made, gone?.made, await changedJobs(changed)]) {
    expect(made, 'it happened in between').toBeGreaterThan(0)
    expect(made, 'it happened in between').toBeLessThan(TRIGGERS)
  }
})

async function changedJobs({ id }: Definition): Promise<number> {
  const rows = await sql(store, `SELECT id FROM ichido.jobs WHERE definition_id = $1 AND payload LIKE '%changed%'`, id)
  return rows.length
}
