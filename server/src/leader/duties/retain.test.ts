import { IchidoError } from '@ichido/sdk/protocol'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { SettingName } from '../../core/limits/settings.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { SESSION_TTL_MS } from '../../services/access/sessions.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { EVERY_JOB } from '../../store/jobs/list-jobs.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { settingsOf } from '../../testing/store/retention.ts'
import { sql } from '../../testing/store/store.ts'
import { createRetain } from './retain.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS
const WORKER = 'worker'
/**
 * PostgreSQL ends a leader's transaction that is idle for 2 s, which happens on a busy machine, and it is tried again.
 * Rows that are still locked then are left for the next time.
 */
const PATIENT = { timeout: 20_000 }
/** All that belongs to a job. */
const OF_JOBS = [
  'jobs',
  'ready',
  'held',
  'ended',
  'results',
  'events',
  'run_logs',
  'job_labels',
  'artifacts',
  'expired_keys',
  'dead_letters',
  'upload_waits',
  'once_counters',
]

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let values: Partial<Record<SettingName, number>> = {}
  let removed = new Map<string, number>()
  let behindMs: number[] = []
  let retain: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
    retain = await retainer()
  })
  afterEach(async () => {
    values = {}
    removed = new Map()
    behindMs = []
    await scene.clear()
    for (const table of [...OF_JOBS, 'queues', 'job_reservations', 'audit']) {
      await sql(scene.store, `DELETE FROM ichido.${table}`)
    }
  })
  afterAll(() => scene.close())

  async function retainer() {
    const settings = { get: (name: SettingName) => settingsOf(values).get(name) }
    const meter = {
      ...silentMeter,
      removed: (table: string, count: number) => void removed.set(table, (removed.get(table) ?? 0) + count),
      retentionBehind: (ms: number) => void behindMs.push(ms),
    }
    return createRetain({ ...scene, settings, meter }, await seize(scene.store))
  }
  /** Until nothing is left. */
  async function retainAll(tick = retain): Promise<number> {
    let turns = 1
    while ((await tick()) !== null) turns++
    return turns
  }
  const keys = async () => {
    const { data } = await scene.services.keys.list(LOCAL_ADMIN, false, 2_000, null)
    return data.map(({ key }) => key).sort()
  }
  const cancel = (id: string) => scene.services.jobs.cancel(LOCAL_ADMIN, id)
  const rows = async (table: string) => {
    // On SQLite a row without a job takes the place of the last.
    const whose = table === 'events' ? "WHERE job_id <> '00000000-0000-0000-0000-000000000000'" : ''
    return (await sql(scene.store, `SELECT * FROM ichido.${table} ${whose}`)).length
  }
  const ids = async () => (await sql(scene.store, 'SELECT id FROM ichido.jobs')).map(({ id }) => id)
  const get = (id: string) => scene.services.jobs.get(LOCAL_ADMIN, id)

  async function leased() {
    const call = { queues: ['default', 'brief'], kinds: ['work'], max: 1, waitMs: 0, startId: 'process' }
    const [lease] = await scene.services.runs.lease(WORKER, call)
    if (lease === undefined) throw new Error('Nothing to lease')
    return lease
  }
  async function finish(): Promise<string> {
    const lease = await leased()
    await scene.services.events.publish(WORKER, lease.lease_id, { stage: 'progress', seq: 1 })
    await scene.services.logs.append(WORKER, lease.lease_id, [{ n: 0, stream: 'stdout', text: 'said' }])
    const report = {
      verb: 'finish',
      result: '1',
      summaryText: 's',
      freqsCsv: null,
      meta: null,
      costMicros: null,
    } as const
    await scene.services.runs.finish(WORKER, lease.lease_id, report)
    await scene.services.runs.finish(WORKER, lease.lease_id, report)
    await scene.services.evidence.flush()
    return lease.job_id
  }
  async function fail(): Promise<string> {
    const lease = await leased()
    const error = { code: 'BROKEN', message: 'It broke' }
    await scene.services.runs.finish(WORKER, lease.lease_id, { verb: 'fail', error, retryable: false })
    return lease.job_id
  }

  describe('keys', () => {
    test('a key is removed when its time is up and its job has ended', async () => {
      const ended = await scene.submit({ key_ttl_hours: 1 }, 'ended')
      await scene.submit({ key_ttl_hours: 1 }, 'active')
      await cancel(await scene.submit({ key_ttl_hours: 2 }, 'young'))
      await cancel(ended)
      await scene.pass(HOUR_MS - 10_000)
      await retain()
      expect(await keys()).toEqual(['active', 'ended', 'young'])
      await scene.pass(10_000)
      expect(await retain()).toBeNull()
      expect(await keys()).toEqual(['active', 'young'])
      expect(await scene.submit({ key_ttl_hours: 1 }, 'ended')).not.toBe(ended)
    })

    test('a full batch continues soon', async () => {
      values = { retain_batch_max: 3 }
      for (let i = 0; i < 4; i++) await cancel(await scene.submit({}, `key-${i}`))
      await scene.pass(DAY_MS)
      expect(await retain()).toBeLessThan(1_000)
      expect(await keys()).toHaveLength(1)
      expect(behindMs.at(-1)).toBeGreaterThanOrEqual(0)
      expect(await retain()).toBeNull()
      expect(await keys()).toEqual([])
      expect(behindMs.at(-1)).toBe(0)
    })
  })

  describe('jobs', () => {
    test('an ended job is removed with all its parts when its time is up', async () => {
      await scene.submit({ labels: { a: 'b' } })
      const done = await finish()
      const active = await scene.submit()
      for (const table of ['results', 'run_logs', 'job_labels', 'once_counters']) expect(await rows(table)).toBe(1)
      await sql(
        scene.store,
        `INSERT INTO ichido.artifacts (id, job_id, user_id, name, state, created_at) VALUES ($1, $1, 'u', 'f', 'ready', 0)`,
        done,
      )
      values = { job_retention_seconds: 3600 }
      await scene.pass(HOUR_MS - 10_000)
      await retainAll()
      expect(await ids()).toHaveLength(2)
      await scene.pass(10_000)
      await retainAll()
      expect(await ids()).toEqual([active])
      for (const table of OF_JOBS) {
        const left = { jobs: 1, ready: 1 }[table] ?? 0
        expect(await rows(table), table).toBe(left)
      }
      // On PostgreSQL the row of the run tells its lease and its end.
      const events = engine === 'sqlite' ? 3 : 1
      expect(Object.fromEntries(removed)).toMatchObject({ jobs: 1, ended: 1, events, results: 1, artifacts: 1 })
      await expect(get(done)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    })

    test('are kept for ever by default', async () => {
      await scene.submit()
      const done = await finish()
      await scene.pass(1_000 * DAY_MS)
      await retainAll()
      expect(await ids()).toEqual([done])
    })

    test('a job stays as long as its key, which names only this job', async () => {
      const done = await scene.submit({}, 'key')
      await finish()
      values = { job_retention_seconds: 60 }
      await scene.pass(DAY_MS - 10_000)
      await retainAll()
      expect(await scene.submit({}, 'key')).toBe(done)
      expect(await get(done)).toMatchObject({ state: 'SUCCEEDED', once: { replays_served: 2 } })
      await scene.pass(10_000)
      await retainAll()
      expect([await ids(), await keys()]).toEqual([[], []])
      expect(await scene.submit({}, 'key')).not.toBe(done)
    })

    test('a dead letter stays until its own time is up, and during a redrive', async () => {
      for (let i = 0; i < 2; i++) await scene.submit()
      const [parked, marked] = [await fail(), await fail()]
      values = { job_retention_seconds: 60 }
      await scene.pass(HOUR_MS)
      await retainAll()
      expect((await ids()).sort()).toEqual([parked, marked].sort())
      const redrive = await scene.services.redrives.begin(
        LOCAL_ADMIN,
        { filter: EVERY_DEAD_LETTER, jobIds: [marked] },
        null,
      )
      values = { ...values, dead_letter_retention_seconds: 3600 }
      await retainAll()
      expect(await ids()).toEqual([marked])
      await scene.services.redrives.abort(LOCAL_ADMIN, redrive.redrive_id)
      await retainAll()
      for (const table of ['jobs', 'ready', 'held', 'ended', 'dead_letters', 'events'])
        expect(await rows(table), table).toBe(0)
    })

    test('a replacement stays as long as the job that it replaced', async () => {
      const old = await scene.submit({}, 'key')
      await fail()
      const { job } = await scene.services.deadLetters.replace(LOCAL_ADMIN, old, 2, null)
      await finish()
      values = { job_retention_seconds: 60 }
      await scene.pass(HOUR_MS)
      await retainAll()
      expect((await ids()).sort()).toEqual([old, job.job_id].sort())
      await expect(scene.services.deadLetters.retry(LOCAL_ADMIN, old)).rejects.toMatchObject({
        code: 'ALREADY_REPLACED',
      })
      await scene.pass(DAY_MS)
      for (let pass = 0; pass < 2; pass++) await retainAll()
      expect(await ids()).toEqual([])
      expect(await rows('expired_keys')).toBe(0)
    })

    test('a walk skips jobs that must stay, and finds them in the next walk', async () => {
      values = { job_retention_seconds: 60, retain_batch_max: 2 }
      const made: string[] = []
      for (let i = 0; i < 7; i++) made.push(await scene.submit())
      const [first, fourth] = [made[0] ?? '', made[3] ?? '']
      for (const id of made) if (id !== first && id !== fourth) await cancel(id)
      await scene.pass(HOUR_MS)
      expect(await retainAll()).toBe(4)
      expect((await ids()).sort()).toEqual([first, fourth].sort())
      await cancel(fourth)
      await retainAll()
      expect(await ids()).toHaveLength(2)
      await scene.pass(MINUTE_MS)
      await retainAll()
      expect(await ids()).toEqual([first])
    })

    test('a job with very many events is removed in several transactions', async () => {
      const id = await scene.submit()
      await cancel(id)
      await sql(
        scene.store,
        `INSERT INTO ichido.events WITH RECURSIVE s(n) AS (SELECT 3 UNION ALL SELECT n + 1 FROM s WHERE n < 6001)
          SELECT (SELECT id FROM ichido.jobs), n, 'run', n, 'work', '{}', 0 FROM s`,
      )
      values = { job_retention_seconds: 60 }
      await scene.pass(HOUR_MS)
      await expect.poll(retain, PATIENT).not.toBeNull()
      expect([await ids(), await rows('events')]).toEqual([[id], 1_000])
      await retainAll()
      expect([await ids(), await rows('events')]).toEqual([[], 0])
    })
  })

  describe('the time of a queue for results', () => {
    const brief = { queue: 'brief' }
    const unlessNotReady = (error: unknown) => {
      if (!(error instanceof IchidoError && error.code === 'ARTIFACT_NOT_READY')) throw error
    }
    const gone = async (call: Promise<unknown>) => expect(call).rejects.toMatchObject({ code: 'NOT_FOUND' })

    test('afterwards a job cannot be read, even before it is removed', async () => {
      await scene.services.queues.put(LOCAL_ADMIN, 'brief', { resultTtlSeconds: 60 })
      const id = await scene.submit(brief, 'key')
      await finish()
      const artifact = 'INSERT INTO ichido.artifacts (id, job_id, user_id, name, state, created_at)'
      await sql(scene.store, `${artifact} VALUES ($1, $1, 'u', 'f', 'awaited', 0)`, id)
      const { jobs, events, logs, artifacts } = scene.services
      const all = () => jobs.list(LOCAL_ADMIN, { ...EVERY_JOB, queue: 'brief' }, 10, null)
      const reads = [
        () => jobs.get(LOCAL_ADMIN, id),
        () => jobs.result(LOCAL_ADMIN, id, 0),
        () => events.read(LOCAL_ADMIN, id, 0, 0),
        () => logs.read(LOCAL_ADMIN, id, { after: null }, 10),
        () => artifacts.ofJob({ caller: LOCAL_ADMIN }, id),
        () => artifacts.find({ caller: LOCAL_ADMIN }, id).catch(unlessNotReady),
      ]
      await scene.pass(MINUTE_MS - 10_000)
      await retainAll()
      for (const read of reads) await read()
      expect((await all()).data).toHaveLength(1)
      await scene.pass(10_000)
      for (const read of reads) await gone(read())
      expect((await all()).data).toEqual([])
      await scene.services.queues.put(LOCAL_ADMIN, 'brief', { resultTtlSeconds: 0 })
      for (const read of reads) await read()
      await scene.services.queues.put(LOCAL_ADMIN, 'brief', { resultTtlSeconds: 60 })
      expect(await scene.submit(brief, 'key')).toBe(id)
      await expect.poll(() => retainAll().then(ids), PATIENT).toEqual([])
      expect(await scene.submit(brief, 'key')).toBe(id)
      await scene.pass(DAY_MS)
      expect(await scene.submit(brief, 'key')).not.toBe(id)
    })

    test.each([0, null])('%s keeps them; other queues and active jobs are left alone', async (ttl) => {
      await scene.services.queues.put(LOCAL_ADMIN, 'brief', { resultTtlSeconds: ttl })
      await scene.services.queues.put(LOCAL_ADMIN, 'other', { resultTtlSeconds: 1 })
      await scene.submit(brief)
      const kept = [await finish(), await scene.submit({ queue: 'other' })]
      await scene.submit(brief)
      kept.push(await fail())
      await scene.services.queues.put(LOCAL_ADMIN, 'default', { resultTtlSeconds: 1 })
      await scene.pass(DAY_MS)
      await retainAll()
      expect((await ids()).sort()).toEqual(kept.sort())
      for (const id of kept) await get(id)
    })

    test('a dead letter stays: it waits for a person', async () => {
      await scene.services.queues.put(LOCAL_ADMIN, 'brief', { resultTtlSeconds: 1 })
      await scene.submit(brief)
      const dead = await fail()
      await scene.pass(HOUR_MS)
      await retainAll()
      expect(await get(dead)).toMatchObject({ state: 'FAILED' })
      await scene.services.deadLetters.retry(LOCAL_ADMIN, dead)
      await finish()
      await gone(scene.pass(1_000).then(() => get(dead)))
    })
  })

  test('events of ended jobs are removed, and followers hear that the job ended', async () => {
    await scene.submit()
    const done = await finish()
    const active = await scene.submit()
    values = { event_retention_seconds: 60 }
    await scene.pass(MINUTE_MS - 10_000)
    await retainAll()
    expect(await rows('events')).toBe(3)
    await scene.pass(10_000)
    await retainAll()
    expect(await rows('events')).toBe(0)
    expect((await scene.services.events.read(LOCAL_ADMIN, active, 0, 0)).events).toHaveLength(1)
    expect(await get(done)).toMatchObject({ state: 'SUCCEEDED' })
    expect(await scene.services.events.read(LOCAL_ADMIN, done, 0, 10_000)).toEqual({ events: [], ended: true })
  })

  test('reservations and audit entries are removed after their time', async () => {
    const reserve = () => scene.services.reservations.reserve(LOCAL_ADMIN, 3600)
    await scene.services.reservations.release(LOCAL_ADMIN, (await reserve()).reservation_id)
    const live = await reserve()
    await cancel(await scene.submit())
    values = { audit_retention_days: 30 }
    await scene.pass(7 * DAY_MS - MINUTE_MS)
    await retainAll()
    expect(await rows('job_reservations')).toBe(2)
    await scene.pass(2 * MINUTE_MS)
    await retainAll()
    expect(await sql(scene.store, 'SELECT reservation_id FROM ichido.job_reservations')).toEqual([
      { reservation_id: live.reservation_id },
    ])
    await scene.pass(22 * DAY_MS)
    await retainAll()
    expect([await rows('job_reservations'), await rows('audit')]).toEqual([0, 1])
    await scene.pass(DAY_MS)
    await retainAll()
    expect(await rows('audit')).toBe(0)
  })

  test('sessions are removed when their time is over', async () => {
    const { access, sessions } = scene.services
    const { token } = await access.createToken(LOCAL_ADMIN, {
      userId: 'ann',
      role: 'viewer',
      name: '',
      ttlSeconds: null,
    })
    for (let i = 0; i < 3; i++) await sessions.create(token)
    values = { retain_batch_max: 2 }
    await scene.pass(SESSION_TTL_MS - MINUTE_MS)
    await sessions.create(token)
    await retainAll()
    expect([await rows('sessions'), removed.get('sessions')]).toEqual([4, 0])
    await scene.pass(2 * MINUTE_MS)
    expect(await retainAll()).toBe(2)
    expect([await rows('sessions'), removed.get('sessions')]).toEqual([1, 3])
    const former = createRetain(
      { ...scene, settings: settingsOf({}), meter: silentMeter },
      { holder: 'former', epoch: 0 },
    )
    await scene.pass(SESSION_TTL_MS)
    await former()
    expect(await rows('sessions')).toBe(1)
    await retainAll()
    expect(await rows('sessions')).toBe(0)
  })

  test('minute counts are removed in batches when no alert needs them', async () => {
    const count = async (times: number) => {
      for (let i = 0; i < times; i++) {
        scene.services.minuteCounts.add('runs_started', 1)
        await scene.services.minuteCounts.flush()
        await scene.pass(MINUTE_MS)
      }
    }
    await scene.services.minuteCounts.flush()
    await sql(scene.store, 'DELETE FROM ichido.minute_counts')
    values = { retain_batch_max: 2 }
    await count(5)
    await scene.pass(HOUR_MS)
    await retainAll()
    expect(await rows('minute_counts'), 'an hour, and 5 minutes to be calm').toBe(5)
    await scene.pass(8 * MINUTE_MS)
    await count(1)
    expect(await retainAll()).toBe(3)
    expect(await rows('minute_counts')).toBe(1)
    expect(removed.get('minute_counts')).toBe(5)
    values = { alert_duplicate_keys_window_seconds: 86_400 }
    await scene.pass(HOUR_MS * 24)
    await retainAll()
    expect(await rows('minute_counts'), 'some window is a day').toBe(1)
  })

  test('a former leader removes nothing', async () => {
    scene.services.minuteCounts.add('runs_started', 1)
    await scene.services.minuteCounts.flush()
    await cancel(await scene.submit({}, 'key'))
    await scene.submit()
    await fail()
    await scene.submit()
    await finish()
    await scene.services.reservations.reserve(LOCAL_ADMIN, 300)
    values = {
      job_retention_seconds: 60,
      dead_letter_retention_seconds: 60,
      event_retention_seconds: 30,
      audit_retention_days: 1,
    }
    await scene.pass(30 * DAY_MS)
    const tables = [...OF_JOBS, 'idempotency_keys', 'job_reservations', 'audit', 'minute_counts']
    const counts = () => Promise.all(tables.map(rows))
    const before = await counts()
    const old = retain
    retain = await retainer()
    await retainAll(old)
    expect(await counts()).toEqual(before)
    await retainAll()
    expect(await counts()).toEqual(before.map(() => 0))
  })
})
