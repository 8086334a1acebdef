import type { RunShape } from '@ichido/sdk/protocol'
import { expect, test } from 'vitest'
import { partsOf } from './job-timeline-parts.ts'

const at = (second: number) => new Date(second * 1_000).toISOString()
const RUN: RunShape = {
  run_id: 'r',
  run_no: 1,
  state: 'PENDING',
  version: 0,
  attempt: 0,
  retry_count: 0,
  run_at: at(100),
  created_at: at(100),
  assigned_worker_id: null,
  assigned_at: null,
  lease_expires_at: null,
  started_at: null,
  finished_at: null,
  continuation_state: 'NONE',
  continuation_check_deadline_at: null,
  cancel_requested_at: null,
  error: null,
}
const seconds = (run: Partial<RunShape>, now: number) =>
  partsOf({ ...RUN, ...run }, now * 1_000).map(({ name, fromMs, toMs }) => [name, (toMs - fromMs) / 1_000])

test('a run that is due waits for a worker', () => {
  expect(seconds({}, 107)).toEqual([['waited', 7]])
})

test('a run that is not due yet waits for its time, however far away', () => {
  expect(seconds({ run_at: at(9_000) }, 107)).toEqual([['due', 7]])
})

test('a retry waits for its delay, then for a worker, and then runs', () => {
  const run = { retry_count: 1, run_at: at(102), assigned_at: at(105), started_at: at(106), finished_at: at(116) }
  expect(seconds(run, 200)).toEqual([
    ['retry', 2],
    ['waited', 3],
    ['leased', 1],
    ['running', 10],
  ])
})

test('a silent worker is seen from the end of its lease on', () => {
  const held = { assigned_at: at(100), started_at: at(100), lease_expires_at: at(110) }
  expect(seconds({ ...held, continuation_state: 'CONFIRMING' }, 115)).toEqual([
    ['running', 10],
    ['confirming', 5],
  ])
})
