import { afterAll, beforeAll, expect, test } from 'vitest'
import { EMPTY_OUTCOME } from '../core/run/run-state.ts'
import { text } from '../testing/store/rows.ts'
import { finished, renderForTest, Scene } from '../testing/store/scene.ts'
import { sql, type TestStore, testStore } from '../testing/store/store.ts'
import { cancelJob } from './jobs/cancel-or-delete.ts'
import { type Leased, leaseBatch } from './leasing/lease-runs.ts'
import type { Command, Store } from './port.ts'
import { finishBatch } from './runs/finish-runs.ts'
import type { SubmitItem } from './submission/submission.ts'
import { submitAndLease } from './submission/submit-and-lease.ts'
import { submitJobs } from './submission/submit-jobs.ts'

/** A fast path and the general path of a command leave the same rows, in every table. They differ in instants alone. */

let [fast, general]: TestStore[] = []
beforeAll(async () => {
  ;[fast, general] = [await testStore('postgres'), await testStore('postgres')]
})
afterAll(() => Promise.all([fast?.close(), general?.close()]))

const stores = () => [fast?.store, general?.store].flatMap((store) => store ?? [])
const scene = new Scene({} as Store)
const item = (changes: Parameters<Scene['item']>[0] = {}) => scene.item({ fairTag: 7, ...changes })

/** Only the fast path: the command fails if the path declines. */
const fastOnly = <T>(command: Command<T>): Command<T> => ({
  ...command,
  work() {
    throw new Error(`The fast path of ${command.name} has declined`)
  },
})
const slowly = <T>(command: Command<T>): Command<T> => ({ ...command, fastPath: undefined })

/** Runs a command by its fast path in one store, and step by step in the other. */
async function both<T>(command: Command<T>): Promise<[T, T]> {
  const [a, b] = stores() as [Store, Store]
  return [await a.write(fastOnly(command)), await b.write(slowly(command))]
}

async function everywhere<T>(command: Command<T>): Promise<void> {
  for (const store of stores()) await store.write(slowly(command))
}

/** A fast path of submit needs a row of its user. */
const submitFirst = () => everywhere(submitJobs([item()], renderForTest))

/** All rows of all tables, with a word for each instant. */
async function rowsOf(store: Store): Promise<Record<string, string[]>> {
  const names = await sql(store, `SELECT tablename::text AS name FROM pg_tables WHERE schemaname = 'ichido' ORDER BY 1`)
  const tables: Record<string, string[]> = {}
  for (const name of names.map((row) => text(row, 'name'))) {
    const rows = await sql(store, `SELECT row_to_json(t)::text AS row FROM ichido.${name} t`)
    tables[name] = rows.map((row) => withoutInstants(text(row, 'row'))).sort()
  }
  return tables
}

function withoutInstants(json: string): string {
  return json
    .replaceAll(/(?<=":)\d{13}\b/g, '"ms"')
    .replaceAll(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, 'iso')
    .replaceAll(/tx":\d+/g, 'tx":0')
}

async function expectSameRows(table: string, count: number): Promise<void> {
  const [a, b] = await Promise.all(stores().map(rowsOf))
  expect(a?.[table]).toHaveLength(count)
  expect(a).toEqual(b)
}

const keyed: SubmitItem[] = [
  item({ key: 'a', policy: { max_attempts: 2, lease_ttl_seconds: 9 }, priority: 3, traceparent: 't' }),
  item({ payload: JSON.stringify('ü \\u0001 "') }),
]
const poll = scene.leaseItem({ max: 3 })
const startingPoll = scene.leaseItem({ kinds: ['started'], startId: 'start' })

test('submit leaves the same rows by its fast path and step by step', async () => {
  await submitFirst()
  const [a, b] = await both(submitJobs(keyed, renderForTest))
  expect(a.map(({ kind }) => kind)).toEqual(b.map(({ kind }) => kind))
  await expectSameRows('jobs', 3)
})

test('lease leaves the same rows by its fast path and step by step', async () => {
  const [a, b] = await both(leaseBatch([poll]))
  expect(a.leases.flat().map(({ runId }) => runId)).toEqual(b.leases.flat().map(({ runId }) => runId))
  expect(a).toMatchObject({ leases: [{ length: 3 }], scanned: b.scanned })
  await expectSameRows('held', 3)
})

test('finish leaves the same rows by its fast path and step by step', async () => {
  await everywhere(submitJobs([item({ kind: 'started' }), item({ kind: 'started' })], renderForTest))
  const [a] = await both(leaseBatch([{ ...startingPoll, max: 2 }]))
  const reports = [finished(), finished({ result: 'null', summaryText: 's', meta: '{"m":1}' })]
  const items = a.leases.flat().map((lease, i) => scene.endItem(lease, reports[i] ?? finished()))
  const [c, d] = await both(finishBatch(items))
  expect(c.map(({ kind }) => kind)).toEqual(['recorded', 'recorded'])
  expect(d.map(({ kind }) => kind)).toEqual(['recorded', 'recorded'])
  await expectSameRows('results', 2)
})

test('finish of runs that return nothing leaves the same rows by its fast path and step by step', async () => {
  await everywhere(submitJobs([item({ kind: 'empty' }), item({ kind: 'empty' })], renderForTest))
  const [a] = await both(leaseBatch([scene.leaseItem({ kinds: ['empty'], startId: 'start', max: 2 })]))
  const [first, second] = a.leases.flat()
  if (first === undefined || second === undefined) throw new Error('Two runs are leased')
  await everywhere(cancelJob(second.jobId))
  const empty = finished({ result: 'null' })
  const items = [first, second].map((lease) => scene.endItem(lease, empty, { outcomeHash: EMPTY_OUTCOME }))
  const [c, d] = await both(finishBatch(items))
  const untimed = (outcomes: readonly object[]) => outcomes.map((outcome) => ({ ...outcome, tookMs: 0 }))
  expect(untimed(c)).toEqual(untimed(d))
  expect(c).toMatchObject([{ state: 'SUCCEEDED' }, { state: 'CANCELED' }])
  await expectSameRows('ended', 4)
  // A repeat is known as such, and other content is refused.
  const others = items.map((item) => ({ ...item, outcomeHash: 'another' }))
  for (const store of stores()) {
    expect(await store.write(finishBatch(items))).toMatchObject(Array(2).fill({ kind: 'repeated' }))
    expect(await store.write(finishBatch(others))).toMatchObject(
      Array(2).fill({ kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' }),
    )
  }
})

test.each([null, 'start'])('submit-and-lease leaves the rows of a submit and a lease, start %s', async (startId) => {
  const job = item({ kind: `at once ${startId}`, key: `at once ${startId}`, policy: { continuation_seconds: 5 } })
  const waiting = scene.leaseItem({ kinds: [job.kind], startId })
  const [a, b] = stores() as [Store, Store]
  const outcome = await a.write(fastOnly(submitAndLease([job], { polls: [waiting], from: null }, renderForTest)))
  expect(outcome).toMatchObject({ kind: 'leased' })
  await b.write(slowly(submitJobs([job], renderForTest)))
  const { leases } = await b.write(slowly(leaseBatch([waiting])))
  const untimed = (found: readonly Leased[]) => found.map((lease) => ({ ...lease, leaseExpiresAtMs: 0, waitedMs: 0 }))
  expect(untimed(outcome.kind === 'leased' ? outcome.leases : [])).toEqual(untimed(leases.flat()))
  await expectSameRows('jobs', startId === null ? 8 : 9)
})
