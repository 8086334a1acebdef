import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { type Embedded, embedded, thrownBy } from '../testing/services/embedded.ts'
import { unique, until } from '../testing/store/store.ts'
import { defineKind } from './index.ts'

let database: FreshDatabase
let pool: pg.Pool
let ichido: Embedded
beforeAll(async () => {
  database = await freshDatabase()
  // As an application has it, with a password that the pool hides: the bus needs it for its own connection.
  const { hostname: host, port, username: user, password, pathname } = new URL(database.tcpUrl)
  pool = new pg.Pool({ host, port: Number(port), user, password, database: pathname.slice(1), max: 20 })
  pool.on('error', () => {})
  await pool.query('CREATE TABLE orders (id text PRIMARY KEY)')
  ichido = await embedded({ pool })
})
afterAll(async () => {
  await ichido.close()
  await pool.query('SELECT 1')
  await pool.end()
  await database.leave()
})
beforeEach(() => limit({ max_concurrent: null, cost_limit: null }))

const limit = (limits: { max_concurrent: number | null; cost_limit: number | null }) =>
  ichido.node.services.quotas.put(LOCAL_ADMIN, 'local', { ...limits, period: 'month' })
const quota = () => ichido.node.services.quotas.get(LOCAL_ADMIN, 'local')

/** Counts only this database, because other tests use the same server. */
const WAITING = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

/** Runs the application's work in its own transaction, and ends it as given. */
async function transaction<T>(
  end: 'COMMIT' | 'ROLLBACK',
  work: (tx: pg.PoolClient) => Promise<T>,
  begin = 'BEGIN',
): Promise<T> {
  const tx = await pool.connect()
  try {
    await tx.query(begin)
    const answer = await work(tx)
    await tx.query(end)
    return answer
  } finally {
    await tx.query('ROLLBACK')
    tx.release()
  }
}

const TABLES = ['jobs', 'events', 'idempotency_keys', 'job_labels', 'job_reservations', 'cost_counters']
const ROOMS = ['ready', 'held', 'ended']

/** Everything that a submit leaves behind, by table. Runs are counted in all rooms together. */
async function traces(): Promise<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const table of TABLES) {
    const { rows } = await pool.query(`SELECT count(*)::int AS count FROM ichido.${table}`)
    counts[table] = rows[0].count
  }
  const inRooms = ROOMS.map((room) => `(SELECT count(*) FROM ichido.${room})`).join(' + ')
  counts.runs = (await pool.query(`SELECT (${inRooms})::int AS count`)).rows[0].count
  const { rows } = await pool.query('SELECT coalesce(sum(spent_micros), 0)::float8 AS spent FROM ichido.cost_counters')
  return { ...counts, spent: rows[0].spent }
}

test("a submission uses Ichido's tables, whatever the caller's search_path", async () => {
  await pool.query('CREATE SCHEMA shadow')
  const before = await traces()
  for (const table of [...TABLES, ...ROOMS]) {
    await pool.query(`CREATE TABLE shadow.${table} (LIKE ichido.${table})`)
  }
  const name = unique('shadowed')
  await transaction('COMMIT', async (tx) => {
    await tx.query('SET LOCAL search_path = shadow')
    await ichido.submit(name, null, { tx, key: name, labels: { a: 'b' } })
  })
  expect(await traces()).toMatchObject({ jobs: Number(before.jobs) + 1, runs: Number(before.runs) + 1 })
  expect((await pool.query('SELECT id FROM shadow.jobs')).rows).toEqual([])
  await pool.query('DROP SCHEMA shadow CASCADE')
})

test('a rollback leaves no job, no key, no use of the quota and no cost', async () => {
  await limit({ max_concurrent: 100, cost_limit: 1_000 })
  const before = [await traces(), await quota()]
  const name = unique('rolled-back')
  const job = await transaction('ROLLBACK', async (tx) => {
    await tx.query('INSERT INTO orders VALUES ($1)', [name])
    return ichido.submit(name, null, { tx, key: name, estimatedCost: 5, labels: { a: 'b' } })
  })
  expect([await traces(), await quota()]).toEqual(before)
  expect(await thrownBy(job.get())).toMatchObject({ code: 'NOT_FOUND' })
  expect(await ichido.submit(name, { other: true }, { key: name })).toMatchObject({ replayed: false })
})

test('the commit makes the job and wakes a worker', async () => {
  const kind = defineKind(unique('committed'))
  let begin: (atMs: number) => void = () => {}
  ichido.handle(kind, ({ payload }) => {
    begin(performance.now())
    return payload
  })
  const latencies: number[] = []
  for (let i = 0; i < 5; i++) {
    const begun = new Promise<number>((resolve) => {
      begin = resolve
    })
    // The handler has just looked, and does so again only a second later.
    await sleep(100)
    const id = `${kind.name}-${i}`
    const job = await transaction('COMMIT', async (tx) => {
      await tx.query('INSERT INTO orders VALUES ($1)', [id])
      return ichido.submit(kind, { id }, { tx, key: id, estimatedCost: 1 })
    })
    const committedMs = performance.now()
    latencies.push((await begun) - committedMs)
    expect(await job.result()).toEqual({ id })
    expect((await job.get()).runs).toHaveLength(1)
  }
  expect(latencies.toSorted((a, b) => a - b)[2]).toBeLessThan(500)
  const { rows } = await pool.query('SELECT 1 FROM orders WHERE id LIKE $1', [`${kind.name}%`])
  expect(rows).toHaveLength(5)
})

test('the same key is the same job, inside the transaction and after it', async () => {
  const name = unique('keyed')
  const jobs = await transaction('COMMIT', async (tx) => {
    const first = await ichido.submit(name, { n: 1 }, { tx, key: name })
    const again = await ichido.submit(name, { n: 1 }, { tx, key: name })
    const other = await thrownBy(ichido.submit(name, { n: 2 }, { tx, key: name }))
    expect(other).toMatchObject({ code: 'IDEMPOTENCY_KEY_REUSED', details: { job_id: first.id } })
    return [first, again]
  })
  jobs.push(await ichido.submit(name, { n: 1 }, { key: name }))
  jobs.push(await transaction('COMMIT', (tx) => ichido.submit(name, { n: 1 }, { tx, key: name })))
  expect(jobs.map(({ replayed }) => replayed)).toEqual([false, true, true, true])
  expect(new Set(jobs.map(({ id }) => id)).size).toBe(1)
})

test('a refusal does not affect the transaction', async () => {
  await limit({ max_concurrent: 0, cost_limit: null })
  const name = unique('refused')
  await transaction('COMMIT', async (tx) => {
    await tx.query('INSERT INTO orders VALUES ($1)', [name])
    expect(await thrownBy(ichido.submit(name, null, { tx }))).toMatchObject({ code: 'QUOTA_EXCEEDED' })
    const badReservation = { tx, reservationId: '01890000-0000-7000-8000-000000000000' }
    expect(await thrownBy(ichido.submit(name, null, badReservation))).toMatchObject({ code: 'RESERVATION_NOT_ACTIVE' })
  })
  expect((await pool.query('SELECT 1 FROM orders WHERE id = $1', [name])).rows).toHaveLength(1)
})

test('a database error in the submission leaves the transaction usable', async () => {
  const name = unique('broken')
  await transaction('COMMIT', async (tx) => {
    await tx.query('INSERT INTO orders VALUES ($1)', [name])
    const failing = {
      query: (config: { text: string }) =>
        tx.query(config.text.includes('INSERT INTO') ? { text: 'SELECT 1/0' } : config),
    }
    expect(await thrownBy(ichido.submit(name, null, { tx: failing, key: name }))).toMatchObject({ code: '22012' })
    expect(await ichido.submit(name, null, { tx, key: name })).toMatchObject({ replayed: false })
  })
  expect((await pool.query('SELECT 1 FROM orders WHERE id = $1', [name])).rows).toHaveLength(1)
  expect((await ichido.list({ key: name })).data).toHaveLength(1)
})

test.each(['REPEATABLE READ', 'SERIALIZABLE'])('%s is refused, because quotas would overshoot', async (level) => {
  const submit = (tx: pg.PoolClient) => ichido.submit(unique('strict'), null, { tx })
  const error = await thrownBy(transaction('COMMIT', submit, `BEGIN ISOLATION LEVEL ${level}`))
  expect(error).toBeInstanceOf(TypeError)
  expect(String(error)).toContain(`submit with tx needs a READ COMMITTED transaction; this one is ${level}`)
})

test('a pool, or a client without a transaction, is refused', async () => {
  const name = unique('loose')
  const client = await pool.connect()
  for (const tx of [client, pool]) {
    const error = await thrownBy(ichido.submit(name, null, { tx }))
    expect(error).toBeInstanceOf(TypeError)
    expect(String(error)).toContain('tx must be a client inside a transaction: BEGIN first')
  }
  client.release()
  expect((await ichido.list({ kind: name })).data).toEqual([])
})

test('the quota holds inside transactions, even for two open ones of a user', async () => {
  const { active_jobs } = await quota()
  await limit({ max_concurrent: active_jobs + 2, cost_limit: null })
  const name = unique('limited')
  const refused = { code: 'QUOTA_EXCEEDED', message: expect.stringContaining('Quota exceeded: Maximum') }

  const [one, two] = [await pool.connect(), await pool.connect()]
  await one.query('BEGIN')
  await two.query('BEGIN')
  await ichido.submit(name, 1, { tx: one })
  await ichido.submit(name, 2, { tx: one })
  expect(await thrownBy(ichido.submit(name, 3, { tx: one }))).toMatchObject(refused)

  const waiting = thrownBy(ichido.submit(name, 4, { tx: two }))
  await until('the second transaction to wait for the first', async () => {
    return (await pool.query(WAITING)).rowCount
  })
  await one.query('COMMIT')
  expect(await waiting).toMatchObject(refused)
  await two.query('COMMIT')
  expect((await quota()).active_jobs).toBe(active_jobs + 2)

  // The second may have the slot that the first gave up.
  await limit({ max_concurrent: active_jobs + 3, cost_limit: null })
  await one.query('BEGIN')
  await two.query('BEGIN')
  await ichido.submit(name, 5, { tx: one })
  const next = ichido.submit(name, 6, { tx: two })
  await one.query('ROLLBACK')
  await next
  await two.query('COMMIT')
  expect((await quota()).active_jobs).toBe(active_jobs + 3)
  one.release()
  two.release()
})

test('the pool stays open when Ichido is closed', async () => {
  const own = await embedded({ pool })
  await own.close()
  expect((await pool.query('SELECT 1 AS one')).rows).toEqual([{ one: 1 }])
})

test('an open transaction does not block other submissions of a user without limits', async () => {
  await transaction('ROLLBACK', async (tx) => {
    await ichido.submit('open', {}, { key: unique('held'), tx })
    const other = await ichido.submit('free', {}, { key: unique('free') })
    expect(await other.state()).toBe('PENDING')
  })
})

test('a submission waits for the key of an open transaction, and gets its job', async () => {
  const key = unique('same')
  let second: Promise<string> | undefined
  const first = await transaction('COMMIT', async (tx) => {
    const job = await ichido.submit('same', {}, { key, tx })
    second = transaction('COMMIT', async (other) => (await ichido.submit('same', {}, { key, tx: other })).id)
    await until('a wait for the key', async () => {
      return (await pool.query(WAITING)).rowCount
    })
    return job.id
  })
  expect(await second).toBe(first)
})

test('after a rollback, the waiting submission with the key makes the job', async () => {
  const key = unique('undone')
  let second: Promise<string> | undefined
  const first = await transaction('ROLLBACK', async (tx) => {
    const job = await ichido.submit('undone', {}, { key, tx })
    second = ichido.submit('undone', {}, { key }).then(({ id }) => id)
    await until('a wait for the key', async () => {
      return (await pool.query(WAITING)).rowCount
    })
    return job.id
  })
  expect(await second).not.toBe(first)
})

test('transactions that use up the pool do not deadlock', async () => {
  const clients = await Promise.all(Array.from({ length: pool.options.max }, () => pool.connect()))
  try {
    const kind = defineKind(unique('used-up'), { queue: unique('used-up') })
    await Promise.all(clients.map((tx) => tx.query('BEGIN')))
    const jobs = await Promise.all(clients.map((tx) => ichido.submit(kind, null, { tx })))
    expect(new Set(jobs.map(({ id }) => id)).size).toBe(pool.options.max)
  } finally {
    for (const tx of clients) {
      await tx.query('ROLLBACK')
      tx.release()
    }
  }
})

test('a wait for a connection can be aborted, and close does not wait for it', async () => {
  const small = new pg.Pool({ connectionString: database.url, max: 1 })
  const own = await embedded({ pool: small })
  const job = await own.submit(unique('waiting'), null)
  const held = await small.connect()
  const reads = [
    (signal: AbortSignal) => job.get({ signal }),
    (signal: AbortSignal) => own.list({}, { signal }),
    (signal: AbortSignal) => job.result({ signal }),
  ]
  for (const read of reads) {
    const giveUp = new AbortController()
    const reading = thrownBy(read(giveUp.signal))
    giveUp.abort(new Error('enough'))
    expect(await reading).toMatchObject({ message: 'enough' })
  }
  held.release()
  await own.close()
  await small.end()
})

test('an abort does not interrupt a submission in a transaction', async () => {
  const [name, user] = [unique('torn'), unique('limited')]
  const limits = { max_concurrent: 5, cost_limit: null, period: 'month' } as const
  await ichido.node.services.quotas.put(LOCAL_ADMIN, user, limits)
  const holder = await pool.connect()
  await holder.query('BEGIN')
  await holder.query('SELECT 1 FROM ichido.quotas WHERE user_id = $1 FOR UPDATE', [user])
  const giveUp = new AbortController()
  await transaction('ROLLBACK', async (tx) => {
    const submitting = ichido.submit(name, null, { tx, user, signal: giveUp.signal })
    await until('it waits for the user', async () => {
      return (await pool.query(`${WAITING} AND query ILIKE '%quotas%'`)).rowCount
    })
    giveUp.abort(new Error('enough'))
    await holder.query('ROLLBACK')
    await submitting
  })
  holder.release()
  expect((await ichido.list({ kind: name })).data).toEqual([])
})
