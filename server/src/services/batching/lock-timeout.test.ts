import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import type { Caller } from '../../core/limits/roles.ts'
import type { PostgresStore } from '../../store/engines/postgres/postgres.ts'
import { promoteDue } from '../../store/leasing/promote-runs.ts'
import { findQuota } from '../../store/limits/quotas.ts'
import { command } from '../../store/port.ts'
import { queryText } from '../../store/statement.ts'
import { type TestServices, testServices } from '../../testing/services/services.ts'
import { Gate } from '../../testing/store/gate.ts'
import { openNode, unique, until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'

/** An application may keep its transaction open for long, and other users must not wait for it. */

const ALICE: Caller = { userId: 'alice', role: 'submitter' }
const BOB: Caller = { userId: 'bob', role: 'submitter' }
const COSTLY = { kind: 'work', estimated_cost: 1 }

let given: TestServices
let store: PostgresStore
let application: pg.Client
let gatekeeper: pg.Client
beforeAll(async () => {
  const { url, leave } = await freshDatabase()
  store = await openNode(url)
  given = await testServices('postgres', {}, { store, remove: leave })
  application = new pg.Client(url)
  gatekeeper = new pg.Client(url)
  await Promise.all([application.connect(), gatekeeper.connect()])
})
afterEach(() => application.query('ROLLBACK'))
afterAll(async () => {
  await Promise.all([application.end(), gatekeeper.end()])
  await given.close()
})

/** Like `submit(…, { tx })` in a transaction that stays open. */
async function keepRowsOf(caller: Caller): Promise<void> {
  await application.query('BEGIN')
  const { submission } = given.services
  await submission.submitIn((command) => store.writeIn(application, command), caller, COSTLY, { key: null })
}

test('a report with a cost waits for its own user only', async () => {
  const { submission, runs, jobs } = given.services
  for (const caller of [ALICE, BOB, BOB]) await submission.submit(caller, COSTLY, { key: null })
  const leases = await runs.lease('w', { queues: ['default'], kinds: ['work'], max: 3, waitMs: 0, startId: 's' })
  const owned = await Promise.all(
    leases.map(async ({ job_id, lease_id }) => [(await jobs.get(LOCAL_ADMIN, job_id)).user_id, lease_id] as const),
  )
  const of = (userId: string) => owned.flatMap(([owner, leaseId]) => (owner === userId ? [leaseId] : []))
  await keepRowsOf(ALICE)

  const [alices = ''] = of('alice')
  const [plain = '', costly = ''] = of('bob')
  const report = (leaseId: string, costMicros: number | null) => {
    const rest = { summaryText: null, freqsCsv: null, meta: null, costMicros }
    return runs.finish('w', leaseId, { verb: 'finish', result: 'null', ...rest })
  }
  let told: string | null = null
  const waiting = report(alices, 500_000).then(({ kind }) => {
    told = kind
  })
  expect(await Promise.all([report(plain, null), report(costly, 500_000)])).toMatchObject([
    { kind: 'recorded' },
    { kind: 'recorded' },
  ])
  expect(told).toBeNull()
  await application.query('ROLLBACK')
  await waiting
  expect(told).toBe('recorded')
})

test('a single waiting report or submission makes room for others', async () => {
  const { submission, runs, quotas } = given.services
  await quotas.put(LOCAL_ADMIN, 'alice', { max_concurrent: 100, cost_limit: null, period: 'month' })
  const leases: string[] = []
  for (const caller of [...Array<Caller>(5).fill(ALICE), BOB]) {
    await submission.submit(caller, { ...COSTLY, queue: 'alone' }, { key: null })
    const [lease] = await runs.lease('w', { queues: ['alone'], kinds: [], max: 1, waitMs: 0, startId: 's' })
    leases.push(lease?.lease_id ?? '')
  }
  await keepRowsOf(ALICE)
  const rest = { summaryText: null, freqsCsv: null, meta: null, costMicros: 500_000 }
  const report = (leaseId: string) => runs.finish('w', leaseId, { verb: 'finish', result: 'null', ...rest })
  const reports = leases.slice(0, 5).map(report)
  const submits: Promise<unknown>[] = []
  for (let i = 0; i < 2; i++) {
    submits.push(submission.submit(ALICE, { kind: 'work' }, { key: null }))
    // Each call is in its own batch.
    await given.services.deps.store.read(findQuota('alice'))
  }
  let settled = 0
  for (const waiting of [...reports, ...submits]) void waiting.finally(() => settled++)
  const bobs = [report(leases[5] ?? ''), submission.submit(BOB, { kind: 'work' }, { key: null })]
  expect(await Promise.all(bobs)).toMatchObject([{ kind: 'recorded' }, { kind: 'created' }])
  expect(settled, 'nobody whose row is kept was told anything').toBe(0)
  await application.query('ROLLBACK')
  expect(await Promise.all(reports)).toMatchObject(Array(5).fill({ kind: 'recorded' }))
  expect(await Promise.all(submits)).toMatchObject(Array(2).fill({ kind: 'created' }))
})

test('a submission of a blocked user does not delay others in its batch', async () => {
  const { submission, quotas } = given.services
  await quotas.put(LOCAL_ADMIN, 'alice', { max_concurrent: 10, cost_limit: null, period: 'month' })
  await keepRowsOf(ALICE)
  let told: string | null = null
  const waiting = submission.submit(ALICE, { kind: 'work' }, { key: null }).then(({ kind }) => {
    told = kind
  })
  const bobs = Array.from({ length: 4 }, () => submission.submit(BOB, { kind: 'work' }, { key: null }))
  expect((await Promise.all(bobs)).map(({ kind }) => kind)).toEqual(Array(4).fill('created'))
  expect(told).toBeNull()
  await application.query('ROLLBACK')
  await waiting
  expect(told).toBe('created')
})

test('calls that wait for a locked row do not delay other calls', async () => {
  const { submission, runs, jobs, quotas, reservations } = given.services
  await quotas.put(LOCAL_ADMIN, 'alice', { max_concurrent: 10, cost_limit: null, period: 'month' })
  await keepRowsOf(ALICE)
  let settled = 0
  const waiting = Array.from({ length: 30 }, () => reservations.reserve(ALICE).finally(() => settled++))
  const all = Promise.allSettled(waiting)
  await submission.submit(BOB, { kind: 'work', queue: 'crowded' }, { key: null })
  const [lease] = await runs.lease('w', { queues: ['crowded'], kinds: [], max: 1, waitMs: 0, startId: 's' })
  const rest = { summaryText: null, freqsCsv: null, meta: null, costMicros: null }
  const report = await runs.finish('w', lease?.lease_id ?? '', { verb: 'finish', result: 'null', ...rest })
  expect(report).toMatchObject({ kind: 'recorded' })
  const { reservation_id } = await reservations.reserve(BOB)
  expect(await reservations.release(BOB, reservation_id)).toMatchObject({ state: 'released' })
  const delayed = await submission.submit(BOB, { kind: 'work', delay_seconds: 3_600 }, { key: null })
  const { outcome } = await jobs.cancel(BOB, delayed.kind === 'created' ? delayed.jobId : '')
  expect(outcome).toBe('canceled')
  expect(await store.write(promoteDue(10, []))).toMatchObject({ promoted: [] })
  expect(settled).toBe(0)
  await application.query('ROLLBACK')
  await all
})

test('a submission does not wait for blocked calls of other sorts', async () => {
  const gate = await Gate.shut(gatekeeper)
  const others = Array.from({ length: 3 }, () =>
    store.write(gate.hold(command('other', () => queryText('SELECT 1 AS one')))),
  )
  await until('all connections of the others to be taken', async () => {
    const text = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
    return (await application.query(text)).rowCount === others.length
  })
  await gate.reached()
  // This node does not know its names and its tag yet.
  const newcomer: Caller = { userId: unique('newcomer'), role: 'submitter' }
  const submitted = await given.services.submission.submit(newcomer, { kind: 'work' }, { key: null })
  expect(submitted.kind).toBe('created')
  // Throws if they have timed out meanwhile.
  await gate.open()
  await Promise.all(others)
})
