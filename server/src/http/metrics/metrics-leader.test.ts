import { expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { createMetrics } from './metrics.ts'

test('the leader, its epoch, and the last run of each loop', async () => {
  const { meter, render } = createMetrics(realWorld)
  const counts = {
    storeUp: true,
    schedules: { overdue: 2, waiting: 1 },
    alerts: { loop_late: 1 },
    disks: [{ folder: '/data', freeRatio: 0.25 }],
    certificateEndsAtMs: 2_000,
    full: { store: 0, artifacts: 1 },
    subscribers: { current: 2, behind: 1 },
  }
  const page = () =>
    render({ jobs: null, workers: null, queues: null, deadLetters: null, triggers: null, webhooks: null, ...counts })
  meter.leadership(true, 7)
  meter.looped('reap', 1_500)
  meter.looped('elect', 2_000)
  expect(await page()).toMatch(/^ichido_is_leader 1$/m)
  expect(await page()).toMatch(/^ichido_alerts_open\{rule="loop_late"\} 1$/m)
  expect(await page()).toMatch(/^ichido_disk_free_ratio\{folder="\/data"\} 0.25$/m)
  expect(await page()).toMatch(/^ichido_certificate_end_timestamp_seconds 2$/m)
  expect(await page()).toMatch(/^ichido_leader_epoch 7$/m)
  expect(await page()).toMatch(/^ichido_loop_last_run_timestamp_seconds\{loop="reap"\} 1.5$/m)
  expect(await page()).toMatch(/^ichido_loop_last_run_timestamp_seconds\{loop="elect"\} 2$/m)
  meter.leadership(false, 8)
  expect(await page()).toMatch(/^ichido_is_leader 0$/m)
  expect(await page()).toMatch(/^ichido_leader_epoch 8$/m)
})

test('numbers of the store are left out during an outage, and come back', async () => {
  const { render } = createMetrics(realWorld)
  const none = {
    jobs: null,
    workers: null,
    queues: null,
    deadLetters: null,
    triggers: null,
    webhooks: null,
    alerts: null,
    disks: [],
    certificateEndsAtMs: undefined,
    full: { store: 0, artifacts: 1 },
    subscribers: { current: 0, behind: 0 },
  }
  const gauges = /^ichido_(schedules_overdue|ticks_waiting|redrives_running) \d+$/gm
  const shown = async (schedules: { overdue: number; waiting: number } | null) =>
    (await render({ ...none, schedules, storeUp: schedules !== null })).match(gauges)
  expect(await shown(null)).toBeNull()
  const both = ['ichido_schedules_overdue 2', 'ichido_ticks_waiting 1']
  expect(await shown({ overdue: 2, waiting: 1 })).toEqual(both)
  expect(await shown(null)).toBeNull()
  expect(await shown({ overdue: 2, waiting: 1 })).toEqual(both)
})
