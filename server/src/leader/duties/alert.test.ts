import type { AlertShape, Page } from '@ichido/sdk/protocol'
import { v7 } from 'uuid'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { alert as shape } from '../../contract/system.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Term } from '../../store/system/term.ts'
import { testApp } from '../../testing/http/app.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { type AlertChange, createAlert } from './alert.ts'

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let term: Term
  let loops: { name: string; late: boolean }[]
  let told: AlertChange[]
  let tick: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(async () => {
    for (const table of ['alerts', 'job_definitions', 'settings']) await sql(scene.store, `DELETE FROM ichido.${table}`)
    await scene.settings.refresh()
    term = await seize(scene.store)
    loops = []
    told = []
    tick = createAlert({ ...scene, loops: () => loops, onAlert: (change) => void told.push(change) }, term)
  })
  afterAll(() => scene.close())

  /** With a next tick so many seconds from now. */
  async function define(name: string, dueInSeconds: number): Promise<void> {
    const insert = `INSERT INTO ichido.job_definitions (id, name, payload, policy, next_tick_at, created_at, updated_at)
      VALUES ($1, $2, '{}', '{}', now_ms() + ${dueInSeconds} * 1000, 0, 0)`
    await sql(scene.store, insert, v7(), name)
  }
  const change = (set: string, name: string) =>
    sql(scene.store, `UPDATE ichido.job_definitions SET ${set} WHERE name = $1`, name)
  const alerts = (all = false) => scene.services.alerts.list({ all, rule: null }, 200, null)
  const open = async () => (await alerts()).data.map(({ rule, subject }) => `${rule} ${subject}`).sort()

  test('an overdue schedule has one alert until it is on time, paused or deleted', async () => {
    for (const name of ['made', 'paused', 'removed', 'early']) await define(name, 10)
    expect(await tick()).toBeNull()
    expect(await open()).toEqual([])
    await scene.pass(71_000)
    await change('next_tick_at = now_ms() - 59000', 'early')
    await tick()
    const first = await alerts()
    expect(await open()).toEqual(['made', 'paused', 'removed'].map((name) => `schedule_overdue ${name}`))
    expect(first.data[0]?.message).toMatch(/^The tick of \w+ that was due at 20\S+Z has not been made$/)
    for (const one of first.data) expect(shape.parse(one)).toEqual(one)
    await tick()
    expect(await alerts(), 'told once').toEqual(first)
    expect(told.map(({ open, rule }) => `${open} ${rule}`)).toEqual(Array(3).fill('true schedule_overdue'))

    await change('next_tick_at = now_ms() + 60000', 'made')
    await change('paused_at = 1', 'paused')
    await sql(scene.store, "DELETE FROM ichido.job_definitions WHERE name = 'removed'")
    await tick()
    expect(await open()).toEqual([])
    expect((await alerts(true)).data.map(({ closed_at }) => typeof closed_at)).toEqual(Array(3).fill('string'))
    expect(told.slice(3).map(({ open, rule }) => `${open} ${rule}`)).toEqual(Array(3).fill('false schedule_overdue'))
    await change('next_tick_at = now_ms() - 61000', 'made')
    await tick()
    expect(await open(), 'anew').toEqual(['schedule_overdue made'])
    expect((await alerts(true)).data).toHaveLength(4)
  })

  test('a late loop has one alert until it is on time, also with a new leader', async () => {
    loops = [
      { name: 'reap', late: true },
      { name: 'promote', late: false },
    ]
    await tick()
    await tick()
    expect(await open()).toEqual(['loop_late reap'])
    expect((await alerts(true)).data).toHaveLength(1)
    loops = [
      { name: 'reap', late: false },
      { name: 'promote', late: true },
    ]
    await tick()
    expect(await open()).toEqual(['loop_late promote'])
    const next = createAlert({ ...scene, loops: () => [], onAlert() {} }, await seize(scene.store))
    await next()
    expect(await open()).toEqual([])
  })

  test('a former leader opens, closes and removes nothing', async () => {
    await define('late', -61)
    loops = [{ name: 'reap', late: true }]
    await tick()
    const before = await alerts(true)
    await seize(scene.store)
    await define('later', -61)
    await change('next_tick_at = NULL', 'late')
    loops = [{ name: 'promote', late: true }]
    expect(await tick()).toBeNull()
    expect(await alerts(true)).toEqual(before)
  })

  test('a tick changes at most a batch of alerts, and continues at once', async () => {
    const { settings } = scene.services
    await settings.put(LOCAL_ADMIN, 'alert_batch_max', 2)
    for (let i = 0; i < 5; i++) await define(`late-${i}`, -61)
    const rounds = async () => {
      const counts: number[] = []
      for (let wait: number | null = 0; wait === 0; ) {
        wait = await tick()
        counts.push((await alerts(true)).data.length, (await open()).length)
      }
      return counts
    }
    expect(await rounds()).toEqual([2, 2, 4, 4, 5, 5])
    await sql(scene.store, 'DELETE FROM ichido.job_definitions')
    expect(await rounds()).toEqual([5, 3, 5, 1, 5, 0])
    await settings.put(LOCAL_ADMIN, 'alert_retention_days', 1)
    await scene.pass(23 * 3_600_000)
    expect(await rounds()).toEqual([5, 0])
    await scene.pass(3_600_001)
    expect(await rounds()).toEqual([3, 0, 1, 0, 0, 0])
  })

  test('two alerts cannot be open for one rule and subject', async () => {
    const insert = `INSERT INTO ichido.alerts (id, rule, subject, message, opened_at) VALUES ($1, 'loop_late', 'x', '', 0)`
    await sql(scene.store, insert, v7())
    await expect(sql(scene.store, insert, v7())).rejects.toThrow()
    await sql(scene.store, 'UPDATE ichido.alerts SET closed_at = 1')
    await sql(scene.store, insert, v7())
  })
})

test('alerts over HTTP: open or all, only for callers who may see everything', async () => {
  const http = await testApp('sqlite')
  const insert = `INSERT INTO ichido.alerts (id, rule, subject, message, opened_at, closed_at) VALUES ($1, 'loop_late', $2, 'm', 0, $3)`
  const { store } = http.services.deps
  for (let i = 0; i < 3; i++) await sql(store, insert, v7(), `loop-${i}`, i === 1 ? 5 : null)
  const list = async (query = '') => (await http.call('GET', `/v1/alerts${query}`)).body as Page<AlertShape>
  const subjects = ({ data }: Page<AlertShape>) => data.map(({ subject }) => subject)
  expect(subjects(await list())).toEqual(['loop-2', 'loop-0'])
  expect(subjects(await list('?all=true'))).toEqual(['loop-2', 'loop-1', 'loop-0'])
  const first = await list('?all=true&limit=2')
  expect(subjects(await list(`?all=true&limit=2&cursor=${first.next_cursor}`))).toEqual(['loop-0'])
  expect((await http.call('GET', '/v1/alerts?all=maybe')).status).toBe(400)
  expect(subjects(await list('?rule=loop_late'))).toEqual(['loop-2', 'loop-0'])
  expect(subjects(await list('?rule=dead_letters&all=true'))).toEqual([])
  const unknown = await http.call('GET', '/v1/alerts?rule=dead_letter')
  expect(unknown).toMatchObject({ status: 400, body: { error: { details: { field: 'rule' } } } })
  const metrics = (await http.call('GET', '/metrics')).text
  expect(metrics).toMatch(/^ichido_alerts_open\{rule="loop_late"\} 2$/m)
  expect(metrics).toMatch(/^ichido_alerts_open\{rule="schedule_overdue"\} 0$/m)
  const submitter = await http.token('s', 'submitter')
  const viewer = await http.token('v', 'viewer')
  expect((await http.call('GET', '/v1/alerts', { token: submitter })).status).toBe(403)
  expect((await http.call('GET', '/v1/alerts', { token: viewer })).status).toBe(200)
  await http.close()
})
