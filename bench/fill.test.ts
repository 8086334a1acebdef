import { expect, test } from 'vitest'
import { freshDatabase } from '../scripts/testing/services.ts'
import { EVERY_JOB, listJobs } from '../server/src/store/jobs/list-jobs.ts'
import { findJob } from '../server/src/store/jobs/read-jobs.ts'
import { command, type Store } from '../server/src/store/port.ts'
import { queryText } from '../server/src/store/statement.ts'
import { openNode, testStore } from '../server/src/testing/store/store.ts'
import { EXPIRED, fill, filledIdOf, filledKeyOf, kindOf, queueOf, teamOf, userOf } from './fill.ts'

const COUNT = EXPIRED + 300

async function look(store: Store, url: string): Promise<void> {
  const filling = { count: COUNT, nowMs: Date.now() }
  await fill(store, url, filling)
  for (const n of [EXPIRED + 1, EXPIRED + 120, COUNT]) {
    const found = await store.read(findJob(filledIdOf(filling, n)))
    expect(found?.key).toBe(filledKeyOf(n))
    expect(found?.job).toMatchObject({ queue: queueOf(n), kind: kindOf(n), user_id: userOf(n) })
  }
  const label = { name: 'team', value: teamOf(COUNT) }
  const { rows } = await store.read(listJobs({ ...EVERY_JOB, label }, 2, null))
  expect(rows.map((row) => row.job_id)).toEqual([filledIdOf(filling, COUNT), filledIdOf(filling, COUNT - 200)])
}

test('filled jobs have their ids, keys and labels on SQLite', async () => {
  const { store, close } = await testStore('sqlite')
  await look(store, '')
  await close()
})

test('filled jobs have their ids, keys and labels on PostgreSQL, with all indexes', async () => {
  const { url, leave } = await freshDatabase()
  const store = await openNode(url)
  const before = await store.read(indexes)
  await look(store, url)
  expect(await store.read(indexes)).toEqual(before)
  await store.close()
  await leave()
})

const indexes = command('indexes', () =>
  queryText("SELECT indexdef FROM pg_indexes WHERE schemaname = 'ichido' ORDER BY indexdef"),
)
