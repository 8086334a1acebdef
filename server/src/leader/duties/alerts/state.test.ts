import type { AlertRule } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { SettingName } from '../../../core/limits/settings.ts'
import { LOCAL_ADMIN } from '../../../services/access/access.ts'
import type { DiskUse } from '../../../services/deps.ts'
import { readClock } from '../../../store/system/leadership.ts'
import { type LeaderScene, leaderScene } from '../../../testing/nodes/leader-scene.ts'
import { seize } from '../../../testing/nodes/reaper.ts'
import { ENGINES } from '../../../testing/services/services.ts'
import { enrolled, registered } from '../../../testing/services/workers.ts'
import { sql } from '../../../testing/store/store.ts'
import { createAlert } from '../alert.ts'

/** Rules about what is there now: queues, disks, tokens and the certificate. */

const SECOND_MS = 1_000
const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let disks: DiskUse[] | Error
  let certificateEndsAtMs: number | undefined
  let tick: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(async () => {
    await scene.clear()
    const tables = ['alerts', 'settings', 'queues', 'workers', 'worker_tokens', 'api_tokens', 'minute_counts']
    for (const table of tables) await sql(scene.store, `DELETE FROM ichido.${table}`)
    await scene.settings.refresh()
    disks = []
    certificateEndsAtMs = undefined
    await newLeader()
  })
  afterAll(() => scene.close())

  async function newLeader(): Promise<void> {
    const term = await seize(scene.store)
    const read = async () => (disks instanceof Error ? Promise.reject(disks) : disks)
    tick = () => createAlert({ ...scene, disks: read, certificateEndsAtMs, loops: () => [], onAlert() {} }, term)()
  }
  const set = (name: SettingName, value: number) => scene.services.settings.put(LOCAL_ADMIN, name, value)
  const list = async (rule: AlertRule, all = false) => (await scene.services.alerts.list({ all, rule }, 200, null)).data
  const open = async (rule: AlertRule) => (await list(rule)).map(({ subject }) => subject)
  /** Another leader finds the same, and reports nothing twice. */
  async function looked(rule: AlertRule): Promise<string[]> {
    await tick()
    const before = await list(rule, true)
    await newLeader()
    await tick()
    expect(await list(rule, true)).toEqual(before)
    return open(rule)
  }

  describe('queue_unserved', () => {
    const UNSERVED = 'queue_unserved'

    test('opens for due runs without a worker, and closes when a worker comes', async () => {
      await scene.submit({ queue: 'lonely' })
      await scene.submit({ queue: 'later', delay_seconds: 3_600 })
      await scene.pass(299 * SECOND_MS)
      expect(await looked(UNSERVED)).toEqual([])
      await scene.pass(2 * SECOND_MS)
      expect(await looked(UNSERVED)).toEqual(['lonely'])
      const [alert] = await list(UNSERVED)
      expect(alert?.message).toBe(
        'Runs of the queue lonely are due, and no worker takes it. Start one: ichido worker --queue lonely --exec COMMAND',
      )
      await registered(scene.services, { enrollToken: await enrolled(scene.services, { queues: ['lonely'] }) })
      expect(await looked(UNSERVED)).toEqual([])
      expect(await list(UNSERVED, true)).toHaveLength(1)
    })

    test('opens when the only worker drains, even if it still holds a run', async () => {
      const { worker_id } = await registered(scene.services, { queues: ['drained'] })
      for (let i = 0; i < 2; i++) await scene.submit({ queue: 'drained' })
      const take = { queues: ['drained'], kinds: ['work'], max: 1, waitMs: 0, startId: 'p' }
      expect(await scene.services.runs.lease(worker_id, take)).toHaveLength(1)
      await scene.pass(301 * SECOND_MS)
      expect(await looked(UNSERVED)).toEqual([])
      await scene.services.workers.drain(LOCAL_ADMIN, worker_id)
      expect(await looked(UNSERVED)).toEqual(['drained'])
      await scene.services.workers.resume(LOCAL_ADMIN, worker_id)
      expect(await looked(UNSERVED)).toEqual([])
    })

    test('stays closed while a worker serves the queue, or it is paused', async () => {
      for (const queue of ['any', 'held', 'paused']) await scene.submit({ queue })
      await scene.submit({ queue: 'held' })
      const take = { queues: ['held'], kinds: ['work'], max: 1, waitMs: 0, startId: 'p' }
      expect(await scene.services.runs.lease('local', take)).toHaveLength(1)
      await scene.services.queues.put(LOCAL_ADMIN, 'paused', { paused: true })
      await scene.pass(301 * SECOND_MS)
      expect(await looked(UNSERVED)).toEqual(['any'])
      await registered(scene.services, { enrollToken: await enrolled(scene.services, {}) })
      expect(await looked(UNSERVED)).toEqual([])
    })
  })

  test('oldest_waiting opens for a run that is due too long, and closes later', async () => {
    await scene.submit({ queue: 'slow' })
    await scene.submit({ queue: 'paused' })
    await scene.services.queues.put(LOCAL_ADMIN, 'paused', { paused: true })
    await scene.pass(599 * SECOND_MS)
    expect(await looked('oldest_waiting')).toEqual([])
    await scene.pass(2 * SECOND_MS)
    expect(await looked('oldest_waiting')).toEqual(['slow'])
    const take = { queues: ['slow'], kinds: ['work'], max: 1, waitMs: 0 }
    expect(await scene.services.runs.lease('local', take)).toHaveLength(1)
    expect(await looked('oldest_waiting')).toEqual([])
    await set('alert_oldest_waiting_threshold_seconds', 5)
    await scene.submit({ queue: 'slow' })
    await scene.pass(6 * SECOND_MS)
    expect(await looked('oldest_waiting')).toEqual(['slow'])
  })

  test('oldest_waiting finds the oldest run behind other kinds, priorities and users', async () => {
    const submit = (queue: string, input: object, userId: string) =>
      scene.services.submission.submit({ userId, role: 'admin' }, { kind: 'work', queue, ...input }, { key: null })
    await submit('kinds', { kind: 'zebra' }, 'ann')
    await submit('priorities', { priority: -9 }, 'ann')
    for (let i = 0; i < 3; i++) await submit('users', {}, 'ann')
    await submit('young', {}, 'ann')
    await scene.pass(601 * SECOND_MS)
    await scene.services.runs.lease('local', { queues: ['young'], kinds: ['work'], max: 1, waitMs: 0 })
    for (const [queue, input] of [
      ['kinds', { kind: 'ant' }],
      ['priorities', { priority: 9 }],
      ['users', {}],
      ['young', {}],
    ] as const) {
      await submit(queue, input, 'bob')
    }
    expect((await looked('oldest_waiting')).sort()).toEqual(['kinds', 'priorities', 'users'])
  })

  test('disk_nearly_full opens above the threshold, and closes only with some room', async () => {
    const used = (percent: number) => [{ folder: '/data', freeRatio: 1 - percent / 100 }]
    const steps = [
      [89, []],
      [90, []],
      [91, ['/data']],
      [89, ['/data']],
      [91, ['/data']],
      [87, []],
      [89, []],
    ] as const
    for (const [percent, subjects] of steps) {
      disks = used(percent)
      expect(await looked('disk_nearly_full'), String(percent)).toEqual(subjects)
    }
    expect(await list('disk_nearly_full', true)).toHaveLength(1)
    disks = new Error('no such folder')
    await scene.submit({ queue: 'other' })
    await scene.pass(301 * SECOND_MS)
    await expect(tick()).rejects.toThrow('no such folder')
    expect(await open('queue_unserved'), 'the other rules go on').toEqual(['other'])
  })

  describe('credential_ending', () => {
    const ENDING = 'credential_ending'
    const token = async (days: number | null) => {
      const ttlSeconds = days === null ? null : (days * DAY_MS) / 1000
      const made = { userId: 'ann', role: 'viewer', name: 'ci', ttlSeconds } as const
      return `token ${(await scene.services.access.createToken(LOCAL_ADMIN, made)).token_id}`
    }

    test('opens 14 days before an API token ends, and closes when it has ended', async () => {
      await token(null)
      await token(1)
      const [kept, revoked] = [await token(90), await token(90)]
      expect(await looked(ENDING)).toEqual([])
      await scene.pass(75 * DAY_MS)
      expect(await looked(ENDING)).toEqual([])
      await scene.pass(DAY_MS + HOUR_MS)
      expect((await looked(ENDING)).sort()).toEqual([kept, revoked].sort())
      expect((await list(ENDING))[0]?.message).toMatch(
        /^The API token "ci" of ann ends at 20\S+Z\. Make a new one: ichido token create$/,
      )
      await scene.services.access.revokeToken(LOCAL_ADMIN, revoked.slice('token '.length))
      expect(await looked(ENDING)).toEqual([kept])
      await scene.pass(14 * DAY_MS)
      expect(await looked(ENDING)).toEqual([])
      expect(await list(ENDING, true)).toHaveLength(2)
    })

    test('opens for a worker that does not renew its token, and closes when it does', async () => {
      const { services } = scene
      const worker = await registered(services, { enrollToken: await enrolled(services, {}) })
      // The worker was not seen since.
      await registered(services, { enrollToken: await enrolled(services, {}) })
      const seen = (workerId: string) =>
        sql(scene.store, 'UPDATE ichido.workers SET last_seen_at = now_ms() WHERE worker_id = $1', workerId)
      await scene.pass(5 * DAY_MS)
      await seen(worker.worker_id)
      expect(await looked(ENDING), 'a quarter of seven days is left').toEqual([])
      await scene.pass(DAY_MS)
      await seen(worker.worker_id)
      expect(await looked(ENDING)).toEqual([`worker ${worker.worker_id}`])
      const identity = await services.workers.authenticate(worker.worker_token)
      if (identity === null || identity === 'revoked') expect.fail('The token is good')
      await services.workers.renew(identity)
      expect(await looked(ENDING)).toEqual([])
    })

    test('opens before the certificate ends, and stays open afterwards', async () => {
      certificateEndsAtMs = (await scene.store.read(readClock())) + 15 * DAY_MS
      expect(await looked(ENDING)).toEqual([])
      await scene.pass(DAY_MS + HOUR_MS)
      expect(await looked(ENDING)).toEqual(['certificate'])
      await scene.pass(20 * DAY_MS)
      expect(await looked(ENDING)).toEqual(['certificate'])
      certificateEndsAtMs += 90 * DAY_MS
      expect(await looked(ENDING)).toEqual([])
    })
  })
})
