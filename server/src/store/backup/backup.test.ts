import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import { ENGINES, type Engine, type TestServices, testServices } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { tamper } from '../../testing/store/tampered-backup.ts'
import { EVERY_JOB } from '../jobs/list-jobs.ts'
import { command } from '../port.ts'
import { queryText, type Work } from '../statement.ts'
import { raiseEpoch } from '../system/leadership.ts'
import { backupStore, restoreStore } from './backup.ts'

const JOBS = 1_200
const folder = mkdtempSync(join(tmpdir(), 'ichido-backup-test-'))
const opened: TestServices[] = []
const sources = new Map<Engine, TestServices>()

beforeAll(async () => {
  for (const engine of ENGINES) {
    const source = await testServices(engine)
    sources.set(engine, source)
    await fill(source.services)
    await backup(source.services, backupOf(engine))
  }
})

afterEach(async () => {
  for (const one of opened.splice(0)) await one.close()
})

afterAll(async () => {
  for (const source of sources.values()) await source.close()
  rmSync(folder, { recursive: true })
})

const backupOf = (engine: Engine) => join(folder, engine)

/** Data in every table that can be filled, with values that are easily damaged. */
async function fill({ submission, runs, events, quotas, reservations, access, definitions, deps }: Services) {
  const submit = (n: number) =>
    submission.submit(
      LOCAL_ADMIN,
      {
        kind: 'k',
        queue: n < 3 ? 'work' : 'other',
        payload: { n, text: `"一度"\\ {a,b} NULL \u0001 ${n}`, deep: [null, true, 0.1] },
        ...(n % 2 === 0 ? { labels: { env: 'a,b "c" \\' } } : {}),
        estimated_cost: 0.25,
        delay_seconds: n < 3 ? 0 : n % 3,
      },
      { key: n % 2 === 0 ? `ci/${n}/"x"` : null },
    )
  await Promise.all(Array.from({ length: JOBS }, (_, n) => submit(n)))
  await submission.submit(LOCAL_ADMIN, { kind: 'big', queue: 'other', payload: 'ü'.repeat(500_000) }, { key: null })

  const [lease] = await runs.lease('w', { queues: ['work'], kinds: ['k'], max: 1, waitMs: 0, startId: 's' })
  if (lease === undefined) throw new Error('there is work')
  const said = Array.from({ length: JOBS }, (_, n) => ({
    stage: 'progress',
    seq: n + 10,
    data: { n, text: `"一度"\\ \n ${n}` },
  }))
  await events.publishAll('w', lease.lease_id, said)
  await runs.finish('w', lease.lease_id, {
    verb: 'finish',
    result: '{"ok":true}',
    summaryText: 'sum',
    freqsCsv: 'a,b\n1,2\n',
    meta: null,
    costMicros: 123_456,
  })
  await runs.lease('w', { queues: ['other'], kinds: ['k'], max: 1, waitMs: 0, startId: 's' })
  await quotas.put(LOCAL_ADMIN, 'alice', { max_concurrent: 5, cost_limit: 1.5, period: 'day' })
  await quotas.put(LOCAL_ADMIN, '*', { max_concurrent: 100_000, cost_limit: null, period: 'month' })
  await reservations.reserve(LOCAL_ADMIN)
  await access.createToken(LOCAL_ADMIN, { userId: 'alice', role: 'viewer', name: 'n', ttlSeconds: 60 })
  await definitions.create(LOCAL_ADMIN, 'nightly', { kind: 'k', payload: { a: 1 }, schedule: { cron: '0 3 * * *' } })
  await deps.store.write(raiseEpoch(41))
}

function source(engine: Engine): Services {
  const found = sources.get(engine)
  if (found === undefined) throw new Error('made before all tests')
  return found.services
}

async function emptyStore(engine: Engine): Promise<Services> {
  const made = await testServices(engine)
  opened.push(made)
  return made.services
}

/** The content of a backup file. */
function countIn(file: string, rows: string): number {
  const db = new DatabaseSync(file, { readOnly: true })
  try {
    return Number(db.prepare(`SELECT count(*) AS n FROM ${rows}`).get()?.n)
  } finally {
    db.close()
  }
}

type Sums = Record<string, { rows: number; sum: string }>

/** The tables of a backup file as its manifest lists them. */
function sumsOf(file: string): Sums {
  const db = new DatabaseSync(file, { readOnly: true })
  try {
    return JSON.parse(String(db.prepare('SELECT manifest FROM backup_manifest').get()?.manifest)).tables
  } finally {
    db.close()
  }
}

const backup = (services: Services, file: string, force = false) =>
  backupStore(services.deps.store, file, { world: realWorld, force })

function withoutLeadership({ leadership, ...rest }: Sums): Sums {
  expect(leadership?.rows).toBe(1)
  return rest
}

async function eventsOfFinished({ deps, events }: Services): Promise<unknown[]> {
  const [finished] = await sql(deps.store, 'SELECT job_id FROM ichido.results')
  const pages = [0, 1_000].map((after) => events.read(LOCAL_ADMIN, String(finished?.job_id), after, 0))
  return (await Promise.all(pages)).flatMap((page) => page.events)
}

async function epochOf({ deps }: Services): Promise<number> {
  return deps.store.write(raiseEpoch(0))
}

for (const from of ENGINES) {
  for (const to of ENGINES) {
    test(`a backup of ${from} is restored into ${to}, row by row the same`, async () => {
      const file = backupOf(from)
      expect(statSync(file).mode & 0o777).toBe(0o600)
      const target = await emptyStore(to)
      const report = await restoreStore(target.deps.store, file, {})
      expect(report.engine).toBe(from)
      // Jobs, their runs, half as many keys and labels, and the events of one of them.
      expect(report.rows).toBeGreaterThan(JOBS * 4)

      const again = join(folder, `${from}-${to}`)
      await backup(target, again)
      expect(withoutLeadership(sumsOf(again))).toEqual(withoutLeadership(sumsOf(file)))
      expect(sumsOf(file)).toMatchObject({
        jobs: { rows: JOBS + 1 },
        results: { rows: 1 },
        api_tokens: { rows: 1 },
        job_definitions: { rows: 1 },
      })
      expect(await epochOf(target)).toBe((await epochOf(source(from))) + 1_000)
      // PENDING, RUNNING, those that the worker said, and the end; whether the engine has a row for each or not.
      expect(await eventsOfFinished(target)).toHaveLength(JOBS + 3)
      expect(await eventsOfFinished(target)).toEqual(await eventsOfFinished(source(from)))
    })
  }

  test(`a restored ${from} continues where the backup ended`, async () => {
    const target = await emptyStore(from)
    await restoreStore(target.deps.store, backupOf(from), {})

    const { data } = await target.jobs.list(LOCAL_ADMIN, { ...EVERY_JOB, key: 'ci/4/"x"' }, 10, null)
    expect(data).toHaveLength(1)
    const first = { kind: 'k', queue: 'other', payload: { n: 4 } }
    const mismatch = await target.submission.submit(LOCAL_ADMIN, first, { key: 'ci/4/"x"' })
    expect(mismatch).toMatchObject({ kind: 'refused', refusal: { code: 'IDEMPOTENCY_KEY_REUSED' } })
    expect(await target.access.isAuthRequired()).toBe(true)
    expect(await target.quotas.get(LOCAL_ADMIN, 'alice')).toMatchObject({ max_concurrent: 5, cost_limit: 1.5 })
    const leased = await target.runs.lease('w2', { queues: ['work'], kinds: ['k'], max: 1, waitMs: 0 })
    expect(leased).toHaveLength(1)
  })

  test(`a ${from} store with data is not restored into`, async () => {
    const target = await emptyStore(from)
    await target.submission.submit(LOCAL_ADMIN, { kind: 'mine' }, { key: null })
    await expect(restoreStore(target.deps.store, backupOf(from), {})).rejects.toThrow('The store is not empty')
    const { data } = await target.jobs.list(LOCAL_ADMIN, EVERY_JOB, 10, null)
    expect(data.map((job) => job.kind)).toEqual(['mine'])
  })

  test(`a changed default quota counts as data (${from})`, async () => {
    const target = await emptyStore(from)
    await target.quotas.put(LOCAL_ADMIN, '*', { max_concurrent: 1, cost_limit: null, period: 'month' })
    await expect(restoreStore(target.deps.store, backupOf(from), {})).rejects.toThrow('The store is not empty')
  })
}

test('a backup of PostgreSQL is one snapshot during submissions and cancels', async () => {
  const { deps, submission, jobs: made } = await emptyStore('postgres')
  const file = join(folder, 'while-submitting')
  let stop = false
  let submitted = 0
  let canceled = 0
  const submit = async () => {
    const job = { kind: 'k', labels: { a: 'b' } }
    const outcome = await submission.submit(LOCAL_ADMIN, job, { key: `key-${submitted++}` })
    if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
    return outcome.jobId
  }
  const submitter = async () => {
    while (!stop) await submit()
  }
  const canceler = async () => {
    for (; !stop; canceled++) await made.cancel(LOCAL_ADMIN, await submit())
  }
  const submitters = [submitter(), submitter(), canceler()]
  await expect.poll(() => submitted > 200 && canceled > 20, { timeout: 30_000 }).toBe(true)
  const before = submitted
  await backupStore(deps.store, file, {
    world: realWorld,
    onProgress: () => expect(submitted).toBeGreaterThanOrEqual(before),
  })
  await expect.poll(() => submitted, { timeout: 30_000 }).toBeGreaterThan(before)
  stop = true
  await Promise.all(submitters)

  const { jobs, ready, ended, job_labels, idempotency_keys, events } = sumsOf(file)
  expect(jobs?.rows).toBeGreaterThan(190)
  for (const table of [job_labels, idempotency_keys]) expect(table?.rows).toBe(jobs?.rows)
  expect((ready?.rows ?? 0) + (ended?.rows ?? 0)).toBe(jobs?.rows)
  // The one event of a job that is stored so far is that it was canceled.
  expect(events?.rows).toBeGreaterThan(20)
  expect(events?.rows).toBe(countIn(file, "ended WHERE state = 'CANCELED'"))
})

test('an existing file is replaced only when asked to', async () => {
  const file = join(folder, 'exists')
  writeFileSync(file, 'precious')
  await expect(backup(source('sqlite'), file)).rejects.toThrow('--force')
  expect(statSync(file).size).toBe(8)
  await backup(source('sqlite'), file, true)
  expect(sumsOf(file).jobs?.rows).toBe(JOBS + 1)
})

test('a backup that fails leaves no file behind', async () => {
  const parent = mkdtempSync(join(folder, 'fails-'))
  const { deps } = source('sqlite')
  const failing = { ...deps.store, write: () => Promise.reject(new Error('the disk is on fire')) }
  await expect(backupStore(failing, join(parent, 'b'), { world: realWorld })).rejects.toThrow('on fire')
  expect(readdirSync(parent)).toEqual([])
})

test('a damaged file is refused, and so is a file that is not a backup', async () => {
  const { deps } = await emptyStore('sqlite')
  const file = join(folder, 'damaged')
  tamper(backupOf('sqlite'), file, "UPDATE jobs SET payload = '0' WHERE id = (SELECT min(id) FROM jobs)")
  await expect(restoreStore(deps.store, file, {})).rejects.toThrow('is damaged: the table jobs')

  const other = join(folder, 'no-backup')
  writeFileSync(other, 'something else')
  await expect(restoreStore(deps.store, other, {})).rejects.toThrow('is not a backup')
  const store = new DatabaseSync(join(folder, 'other.db'))
  store.exec('CREATE TABLE jobs (id)')
  store.close()
  await expect(restoreStore(deps.store, join(folder, 'other.db'), {})).rejects.toThrow('is not a backup')
  const missing = join(folder, 'missing')
  await expect(restoreStore(deps.store, missing, {})).rejects.toThrow('There is no file')
  expect(existsSync(missing)).toBe(false)
})

test.each([20, 600, 5_000, 50_000])('a backup that is truncated after %s bytes is reported as such', async (bytes) => {
  const { deps } = await emptyStore('sqlite')
  const file = join(folder, `cut-${bytes}`)
  writeFileSync(file, readFileSync(backupOf('sqlite')).subarray(0, bytes))
  await expect(restoreStore(deps.store, file, {})).rejects.toThrow(
    `${file} begins like a backup, but is incomplete or damaged`,
  )
})

test('a backup of a newer Ichido is refused', async () => {
  const { deps } = await emptyStore('sqlite')
  const file = join(folder, 'newer')
  tamper(backupOf('sqlite'), file, "UPDATE backup_manifest SET manifest = json_set(manifest, '$.schema_version', 999)")
  await expect(restoreStore(deps.store, file, {})).rejects.toThrow('was made by a newer Ichido')
})

test('a retried restore recognizes its own commit', async () => {
  const { deps } = await emptyStore('sqlite')
  const { store } = deps
  const twice = {
    ...store,
    async write<T>(given: { name: string; work(again: boolean): Work<T> }): Promise<T> {
      await store.write(given)
      return store.write({ name: given.name, work: () => given.work(true) })
    },
  }
  const { epoch } = await restoreStore(twice, backupOf('sqlite'), {})
  expect(epoch).toBe((await epochOf(source('sqlite'))) + 1_000)
  const count = command('count', () => queryText('SELECT count(*) AS n FROM ichido.jobs'))
  expect(await store.read(count)).toEqual([{ n: JOBS + 1 }])
})
