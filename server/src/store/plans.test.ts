import { JOB_STATES } from '@ichido/sdk/protocol'
import pg from 'pg'
import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import { FIRST_ID } from '../core/run/job.ts'
import { seize } from '../testing/nodes/reaper.ts'
import { insertBulk } from '../testing/store/bulk.ts'
import {
  keptPlan,
  nodes,
  type PlanNode,
  readPlans,
  rowsTouched,
  waysInto,
  writePlans,
} from '../testing/store/explain.ts'
import { removeKeys } from '../testing/store/retention.ts'
import { leasesFor, Scene } from '../testing/store/scene.ts'
import { openNode } from '../testing/store/store.ts'
import { countDeadLetters } from './dead-letters/dead-letters.ts'
import type { PostgresStore } from './engines/postgres/postgres.ts'
import { lockEndedState, lockHeldRun, readCancels, requestCancel } from './jobs/cancel-or-delete.ts'
import { idAt } from './jobs/job-filter.sql.ts'
import { countListed, countStates, EVERY_JOB, type JobFilter, listJobs } from './jobs/list-jobs.ts'
import { findJob, readJobs, readKeptJob, readKeptJobs } from './jobs/read-jobs.ts'
import { findLastTags } from './leasing/fair-tags.ts'
import { heartbeatRuns } from './leasing/heartbeat-runs.ts'
import { countHeld, leasedByPoll, leaseRuns, leaseRunsFrom } from './leasing/lease-runs.sql.ts'
import { promoteDue } from './leasing/promote-runs.ts'
import { addSpent, countInUse, lockUsers, readCharges, readRefunds, readSpent } from './limits/quotas.sql.ts'
import { listReservations, listUsers } from './limits/quotas.ts'
import { endHeld, endReady, orphanRuns } from './runs/leader.sql.ts'
import { expireBatch, reviewRuns } from './runs/reap-runs.ts'
import { finishRuns, insertNextRuns, readFacts, readFollowed, releaseRuns, startRuns } from './runs/runs.sql.ts'
import type { Statement } from './statement.ts'
import { deleteKeys, findKeys, listKeys, readKeys, readKeysOfJobs } from './submission/keys.ts'
import { expireReservations, readLive } from './submission/reservations.sql.ts'
import {
  findDueEvents,
  findDueJobs,
  findDueLetters,
  removeAudit,
  removeEvents,
  removeJobs,
  removeReservations,
} from './system/retention.ts'

/** Hazards 19 to 21: what PostgreSQL does with our statements when tables are large. */

const ROWS = size(20_000, 1_000_000)
const part = (share: number) => Math.round(ROWS * share)
const PAGE = 50
/** A page joins a few tables, and may have to skip some rows of other states. */
const A_PAGE_OF_ROWS = PAGE * 12

let database: FreshDatabase
let node: PostgresStore

beforeAll(async () => {
  database = await freshDatabase()
  node = await openNode(database.url)
  await insertBulk(node, { count: part(0.4), state: 'SUCCEEDED', userId: 'heavy', queue: 'busy', keyed: true })
  await insertBulk(node, { count: part(0.3), state: 'PENDING', userId: 'heavy', queue: 'busy' })
  await insertBulk(node, { count: part(0.1), state: 'PENDING', userId: 'heavy', queue: 'busy', delayMs: 3_600_000 })
  await insertBulk(node, { count: part(0.1), state: 'PENDING', userId: 'middle', queue: 'other', kind: 'rare' })
  await insertBulk(node, { count: part(0.05), state: 'RUNNING', userId: 'middle', queue: 'busy', workerId: 'w' })
  await insertBulk(node, { count: part(0.05), state: 'SUCCEEDED', userId: 'light', queue: 'other', keyed: true })
  await insertBulk(node, { count: PAGE, state: 'SUCCEEDED', userId: 'done', queue: 'done' })
  // Not through the store: a statement of its has ten seconds.
  const client = new pg.Client(database.url)
  await client.connect()
  await client.query(`INSERT INTO ichido.job_reservations (reservation_id, user_id, created_at, expires_at)
    SELECT gen_random_uuid(), 'heavy', i, i FROM generate_series(1, ${part(0.1)}) i`)
  await client.query(`INSERT INTO ichido.job_labels SELECT 'team', 'x', id FROM ichido.jobs WHERE user_id = 'heavy'`)
  await client.query(`INSERT INTO ichido.events SELECT id, 1, 'run', 1, kind, '{}', created_at FROM ichido.jobs`)
  await client.query('UPDATE ichido.idempotency_keys SET expires_at = expires_at + 86400000')
  await client.query('VACUUM ANALYZE')
  await client.end()
})

afterAll(async () => {
  await node.close()
  await database.leave()
})

describe('a prepared statement reads its table by', () => {
  test.each<[Statement, string, string[]]>([
    [leaseRuns(1), 'ready', ['ready_order']],
    [leaseRunsFrom(1), 'ready', ['ready_order']],
    [releaseRuns, 'held', ['held_pkey']],
    [readFollowed, 'ended', ['ended_pkey']],
    [readFollowed, 'ready', ['ready_pkey']],
    [readFollowed, 'held', ['held_pkey']],
    [leasedByPoll, 'held', ['held_poll']],
    [startRuns, 'held', ['held_pkey']],
    [heartbeatRuns, 'held', ['held_pkey']],
    [finishRuns, 'held', ['held_pkey']],
    [readFacts, 'ready', ['ready_pkey']],
    [readFacts, 'held', ['held_pkey']],
    [readFacts, 'ended', ['ended_pkey']],
    [endReady, 'ready', ['ready_pkey']],
    [endHeld, 'held', ['held_pkey']],
    [orphanRuns, 'held', ['held_pkey']],
    [insertNextRuns, 'ended', ['ended_pkey']],
    [lockHeldRun, 'held', ['held_pkey']],
    [requestCancel, 'held', ['held_pkey']],
    [lockEndedState, 'ended', ['ended_pkey']],
    [readCancels, 'held', ['held_poll']],
    [readJobs, 'jobs', ['jobs_pkey']],
    [readJobs, 'ready', ['ready_pkey']],
    [readJobs, 'held', ['held_pkey']],
    [readJobs, 'ended', ['ended_pkey']],
    [readKeptJobs, 'jobs', ['jobs_pkey']],
    [readKeptJobs, 'ended', ['ended_pkey']],
    [readKeptJob, 'jobs', ['jobs_pkey']],
    [readKeptJob, 'ended', ['ended_pkey']],
    [countInUse, 'ready', ['ready_user']],
    [countInUse, 'held', ['held_user']],
    [countInUse, 'job_reservations', ['job_reservations_open']],
    [expireReservations, 'job_reservations', ['job_reservations_open', 'job_reservations_pkey']],
    [lockUsers, 'quotas', ['quotas_pkey']],
    [readRefunds, 'ended', ['ended_pkey']],
    [readCharges, 'ended', ['ended_pkey']],
    [readSpent, 'cost_counters', ['cost_counters_pkey']],
    [readKeys, 'idempotency_keys', ['idempotency_keys_pkey']],
    [readKeys, 'ready', ['ready_pkey']],
    [readKeys, 'held', ['held_pkey']],
    [deleteKeys, 'idempotency_keys', ['idempotency_keys_job']],
    [readKeysOfJobs, 'idempotency_keys', ['idempotency_keys_job']],
    [readLive, 'job_reservations', ['job_reservations_pkey']],
    [addSpent, 'cost_counters', []],
  ])('%s', async (statement, table, ways) => {
    const plan = await keptPlan(node, statement)
    expect(waysInto(plan, table), JSON.stringify(plan, null, 1)).toEqual(ways)
  })
})

test('counting dead letters reads a bounded number of rows', async () => {
  const client = new pg.Client(database.url)
  await client.connect()
  try {
    await client.query(`INSERT INTO ichido.dead_letters (job_id, run_id, queue, kind, user_id, error_code, error_message, retry_count, dead_at)
      SELECT gen_random_uuid(), gen_random_uuid(), 'queue ' || i % 3, 'k', 'u', 'X', '', 0, i FROM generate_series(1, ${part(0.3)}) i`)
    await client.query('VACUUM ANALYZE ichido.dead_letters')
    const plans = await readPlans(node, countDeadLetters(10, 100))
    const touched = plans.reduce((sum, plan) => sum + rowsTouched(plan), 0)
    expect(touched, JSON.stringify(plans, null, 1)).toBeLessThanOrEqual(3 * 100 + 20)
    const { queues } = await node.read(countDeadLetters(10, 100))
    expect(queues.map(({ queue, count }) => [queue, count])).toEqual([0, 1, 2].map((n) => [`queue ${n}`, 100]))
  } finally {
    await client.query('TRUNCATE ichido.dead_letters')
    await client.end()
  }
})

describe('a lease', () => {
  const lease = (queue: string, kinds: string[]) =>
    writePlans(node, leasesFor([new Scene(node).leaseItem({ queues: [queue], kinds, max: 10 })]))

  test.each([leaseRuns(1), leaseRunsFrom(1)])(
    'locks runs in the order of its index, without sorting: %s',
    async (statement) => {
      const locking = nodes(await keptPlan(node, statement)).find((plan) => plan['Node Type'] === 'LockRows')
      expect(locking?.Plans?.map((plan) => [plan['Node Type'], plan['Index Name']])).toEqual([
        ['Index Scan', 'ready_order'],
      ])
    },
  )

  test.each([
    ['one kind of a full queue', 'busy', ['work'], 100],
    ['several kinds, one of them absent', 'busy', ['work', 'absent', 'rare'], 100],
    ['any kind of a full queue', 'busy', [], 100],
    ['a kind that is absent', 'busy', ['absent'], 0],
    ['any kind of an empty queue', 'empty', [], 0],
    ['a queue that is empty', 'empty', ['work', 'rare'], 0],
  ])('of %s looks at few rows', async (_, queue, kinds, most) => {
    for (const plan of await lease(queue, kinds)) expect(rowsTouched(plan)).toBeLessThanOrEqual(most)
  })
})

test('the time of a full queue and the last tag of a user take few rows', async () => {
  const plans = await readPlans(node, findLastTags([{ queue: 'busy', userId: 'user-1', priority: 0 }]))
  expect(plans.map((plan) => rowsTouched(plan) <= 10)).toEqual(plans.map(() => true))
})

test('counting the held runs of a queue reads only held runs', async () => {
  const plan = await keptPlan(node, countHeld)
  expect(waysInto(plan, 'ready')).toEqual([])
  expect(waysInto(plan, 'ended')).toEqual([])
})

describe('loops read only due rows:', () => {
  test('promote', async () => {
    const plans = await writePlans(node, promoteDue(1_000, []))
    expect(
      plans.map(rowsTouched).every((rows) => rows <= 10),
      JSON.stringify(plans),
    ).toBe(true)
  })

  test('retain', async () => {
    const plans = await writePlans(node, removeKeys(1_000))
    expect(
      plans.map(rowsTouched).every((rows) => rows <= 10),
      JSON.stringify(plans),
    ).toBe(true)
  })

  describe('retention reads a page:', () => {
    const after = (name: string) => ({ queue: name === 'all' ? null : name, ageMs: 0, after: FIRST_ID })
    const ages = { jobMs: 0, letterMs: 0 }
    const touched = (plans: PlanNode[]) => Math.max(...plans.map(rowsTouched))

    test.each([
      ['of jobs', findDueJobs(after('all'), ages, PAGE)],
      ['of a queue that has most of them', findDueJobs(after('busy'), ages, PAGE)],
      ['of a queue that has few', findDueJobs(after('other'), ages, PAGE)],
      ['of jobs that have events', findDueEvents(0, FIRST_ID, PAGE)],
      ['of dead letters', findDueLetters(0, { deadAtMs: 0, jobId: FIRST_ID }, PAGE)],
    ])('%s', async (_, find) => {
      const plans = await readPlans(node, find)
      expect(touched(plans), JSON.stringify(plans)).toBeLessThanOrEqual(A_PAGE_OF_ROWS)
    })

    test('removal of jobs, events, reservations and audit entries', async () => {
      const term = await seize(node)
      const { due } = await node.read(findDueJobs(after('done'), ages, PAGE))
      expect(due).toHaveLength(PAGE)
      for (const remove of [
        removeJobs(term, due, ages),
        removeEvents(term, due, 0),
        removeReservations(term, 0, PAGE),
        removeAudit(term, 0, PAGE),
      ]) {
        const plans = await writePlans(node, remove)
        expect(touched(plans), JSON.stringify(plans)).toBeLessThanOrEqual(A_PAGE_OF_ROWS)
        for (const table of ['jobs', 'ended', 'events']) {
          for (const plan of plans) expect(waysInto(plan, table)).not.toContain('whole')
        }
      }
    })
  })

  test('the reaper reads only runs that workers hold', async () => {
    const term = await seize(node)
    const sizes = { batchMax: 100, waitingMax: 1_000, reassignAfterMs: 10_000 }
    const review = reviewRuns(term, { nowMs: Date.now() + 120_000, evenMs: Number.MAX_SAFE_INTEGER, ...sizes })
    const { waiting } = await node.write(review)
    expect(waiting).toHaveLength(100)
    const seen = waiting.map((one) => ({ ...one, nextRunId: v7(), random: 0 }))
    const plans = [...(await writePlans(node, review)), ...(await writePlans(node, expireBatch(term, seen)))]
    for (const plan of plans) {
      for (const table of ['ready', 'ended']) expect(waysInto(plan, table)).not.toContain('whole')
    }
    expect(Math.max(...plans.map(rowsTouched))).toBeLessThanOrEqual(part(0.05) * 2 + 10)
  })
})

describe('a page of a list reads about a page of rows:', () => {
  const now = Date.now()

  test.each<[string, Partial<JobFilter>]>([
    ['all jobs', {}],
    ['of a state', { states: ['RUNNING'] }],
    ['of several states', { states: ['RUNNING', 'SUCCEEDED', 'CANCELED'] }],
    ['of a state that nothing is in', { states: ['TIMED_OUT'] }],
    ['of a user', { userId: 'heavy' }],
    ['of a user who has few', { userId: 'light' }],
    ['of a user who has none', { userId: 'nobody' }],
    ['of a queue', { queue: 'busy' }],
    ['of a kind', { kind: 'rare' }],
    ['with a label', { label: { name: 'team', value: 'x' } }],
    ['with a label that nothing has', { label: { name: 'team', value: 'y' } }],
    ['with a key that nothing has', { key: 'absent' }],
    ['with a short id', { shortId: `${idAt(now).slice(0, 13)}…0000` }],
    ['made before some time', { createdToMs: now - 86_400_000 }],
    ['made after some time', { createdFromMs: now + 86_400_000 }],
    ['of a user, made until now', { userId: 'heavy', createdFromMs: now - 3_600_000, createdToMs: now + 3_600_000 }],
    ['of a queue in a state that few are in', { queue: 'other', states: ['SUCCEEDED'] }],
    ['of a user in a state', { userId: 'heavy', states: ['SUCCEEDED'] }],
    ['that wait for artifacts', { states: ['PENDING'], pendingFor: 'artifacts' }],
    ['that wait for a worker', { states: ['PENDING'], pendingFor: 'worker' }],
    ['of a user in a state that none of its jobs is in', { userId: 'heavy', states: ['RUNNING'] }],
  ])('jobs %s', async (_, filter) => {
    for (const order of ['newest', 'oldest'] as const) {
      const first = await node.read(listJobs({ ...EVERY_JOB, ...filter }, PAGE, null, { order }))
      for (const after of first.next === null ? [null] : [null, first.next]) {
        const plans = await readPlans(node, listJobs({ ...EVERY_JOB, ...filter }, PAGE, after, { order }))
        const states = Math.max(1, filter.states?.length ?? 1)
        expect(Math.max(...plans.map(rowsTouched)), JSON.stringify(plans)).toBeLessThanOrEqual(A_PAGE_OF_ROWS * states)
      }
    }
  })

  test.each<[string, Partial<JobFilter>, string, string, number]>([
    ['that wait for their time', { states: ['PENDING'], pendingFor: 'run_at' }, 'ready', 'ready_delayed', part(0.1)],
    ['with a label, of those that workers hold', { states: ['RUNNING'] }, 'held', 'held_pkey', part(0.05)],
  ])('jobs %s are found among few rows', async (_, filter, room, index, few) => {
    const label = { name: 'team', value: 'x' }
    const plans = await readPlans(node, listJobs({ ...EVERY_JOB, ...filter, label }, PAGE, null))
    const ways = plans.flatMap((plan) => waysInto(plan, room))
    expect(ways).toContain(index)
    // The rows that it found are then looked up one by one.
    expect(ways.filter((way) => way !== index && way !== `${room}_pkey`)).toEqual([])
    expect(Math.max(...plans.map(rowsTouched))).toBeLessThanOrEqual(few * 6)
  })

  test.each<[string, Partial<JobFilter>]>([
    ['a text that nothing has', { text: 'absent' }],
    ['a text, of a user', { text: 'absent', userId: 'light' }],
    ['a text, of a queue and kind', { text: 'absent', queue: 'busy', kind: 'work' }],
    ['a text, in every state', { text: 'absent', states: JOB_STATES }],
    ['an error code', { errorCode: 'X' }],
    ['an error code, of a queue', { errorCode: 'X', queue: 'busy' }],
    ['waiting for longer than an hour', { waitingLongerThanMs: 3_600_000 }],
    ['waiting, of a user', { waitingLongerThanMs: 0, userId: 'middle', text: 'absent' }],
  ])('jobs with %s: it reads a bounded number of rows, and says where to continue', async (_, given) => {
    const filter = { ...EVERY_JOB, ...given }
    const scanned = 100
    const list = listJobs(filter, PAGE, null, { scanMax: scanned })
    const touched = (await readPlans(node, list)).map(rowsTouched).reduce((sum, rows) => sum + rows, 0)
    // Of each state: the end of the scan, and then each job with its run, its end and its labels.
    expect(touched).toBeLessThanOrEqual(scanned * 6 * (given.states?.length ?? 1))
    const { rows, next } = await node.read(list)
    if (given.text !== undefined) expect([rows, next]).toEqual([[], expect.any(String)])
  })

  test.each<[string, Partial<JobFilter>]>([
    ['all jobs', {}],
    ['jobs of a queue and kind', { queue: 'busy', kind: 'rare' }],
    ['jobs of a user', { userId: 'heavy' }],
    ['jobs with a label', { label: { name: 'team', value: 'x' } }],
    ['jobs with a text', { text: 'absent' }],
  ])('the counts of %s look at a bounded number of jobs', async (_, filter) => {
    const max = 100
    const plans = await readPlans(node, countStates({ ...EVERY_JOB, ...filter }, max))
    const touched = plans.map(rowsTouched).reduce((sum, rows) => sum + rows, 0)
    expect(touched, JSON.stringify(plans)).toBeLessThanOrEqual(max * 6 * JOB_STATES.length)
  })

  test('jobs after an offset, and their number up to a limit', async () => {
    const skipped = 100
    const offset = await readPlans(node, listJobs(EVERY_JOB, PAGE, null, { offset: skipped }))
    expect(Math.max(...offset.map(rowsTouched))).toBeLessThanOrEqual(A_PAGE_OF_ROWS * (1 + skipped / PAGE))
    const counted = await readPlans(node, countListed({ ...EVERY_JOB, states: ['PENDING', 'SUCCEEDED'] }, PAGE))
    expect(Math.max(...counted.map(rowsTouched))).toBeLessThanOrEqual(A_PAGE_OF_ROWS * 2)
  })

  test('one job, one key', async () => {
    const [row] = (await node.read(listJobs(EVERY_JOB, 1, null))).rows
    for (const command of [findJob(String(row?.job_id)), findKeys('absent', null)]) {
      const plans = await readPlans(node, command)
      expect(Math.max(...plans.map(rowsTouched)), JSON.stringify(plans)).toBeLessThanOrEqual(10)
    }
  })

  test('keys and reservations', async () => {
    for (const command of [
      listKeys(null, false, PAGE, null),
      listKeys(null, true, PAGE, null),
      listKeys('light', true, PAGE, null),
      listReservations('heavy', false, PAGE, null),
      listReservations(null, false, PAGE, null),
    ]) {
      const plans = await readPlans(node, command)
      expect(Math.max(...plans.map(rowsTouched)), JSON.stringify(plans)).toBeLessThanOrEqual(A_PAGE_OF_ROWS)
    }
  })

  test('users, and of runs only what is active', async () => {
    const client = new pg.Client(database.url)
    await client.connect()
    try {
      await client.query(`INSERT INTO ichido.quotas (user_id, custom, period, updated_at)
        SELECT 'user ' || i, false, 'month', 0 FROM generate_series(1, ${part(0.2)}) i`)
      await client.query(`INSERT INTO ichido.users SELECT 'token ' || i, 0 FROM generate_series(1, ${part(0.2)}) i`)
      await client.query('VACUUM ANALYZE ichido.quotas, ichido.users')
      for (const after of [null, 'token 7', 'user 7']) {
        const plans = await readPlans(node, listUsers(PAGE, after))
        expect(Math.max(...plans.map(rowsTouched)), JSON.stringify(plans)).toBeLessThanOrEqual(A_PAGE_OF_ROWS)
        expect(plans.flatMap((plan) => waysInto(plan, 'ready'))).toEqual(['ready_user'])
        expect(plans.flatMap((plan) => waysInto(plan, 'held'))).toEqual(['held_user'])
        expect(plans.flatMap((plan) => waysInto(plan, 'ended'))).toEqual([])
      }
    } finally {
      await client.query('TRUNCATE ichido.users')
      await client.query(`DELETE FROM ichido.quotas WHERE user_id LIKE 'user %'`)
      await client.end()
    }
  })
})
