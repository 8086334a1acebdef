import { expect, test } from 'vitest'
import { awaitUploadsFrom } from './artifact.ts'
import { type WaitingFacts, waitingFor } from './waiting.ts'

const NOW = Date.UTC(2031, 4, 6)
const FACTS: WaitingFacts = {
  state: 'PENDING',
  queue: 'media',
  kind: 'resize',
  runAtMs: NOW,
  nowMs: NOW,
  awaited: [],
  pausedAtMs: null,
  maxConcurrent: null,
  running: 0,
  served: true,
  draining: false,
  askedAgoMs: null,
  redrive: null,
}
const reason = (changes: Partial<WaitingFacts>) => waitingFor({ ...FACTS, ...changes })?.reason ?? null

test('a job that is running or has ended does not wait', () => {
  for (const state of ['ASSIGNED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED'] as const) {
    expect(reason({ state, pausedAtMs: NOW, served: false }), state).toBeNull()
  }
})

test('a reason is named before reasons that only matter after it', () => {
  const all = {
    runAtMs: awaitUploadsFrom(NOW + 1),
    awaited: ['a'],
    pausedAtMs: NOW,
    maxConcurrent: 1,
    running: 1,
    served: false,
  }
  expect(reason(all)).toBe('artifacts')
  expect(reason({ ...all, runAtMs: NOW + 1 })).toBe('run_at')
  expect(reason({ ...all, runAtMs: NOW })).toBe('paused')
  expect(reason({ ...all, runAtMs: NOW, pausedAtMs: null })).toBe('limit')
  expect(reason({ ...all, runAtMs: NOW, pausedAtMs: null, running: 0 })).toBe('no_worker')
  expect(reason({ state: 'ORPHANED' })).toBe('workers_busy')
})

test('no worker: the command that enrolls one', () => {
  expect(waitingFor({ ...FACTS, served: false })).toEqual({
    reason: 'no_worker',
    message:
      'No worker that takes jobs of kind resize from the queue media was seen in the last minute (start one: ichido worker --queue media --exec COMMAND)',
    queue: 'media',
    command: 'ichido workers enroll NAME --queue media',
  })
})

test('only draining workers: they take no new jobs', () => {
  expect(reason({ draining: true })).toBe('workers_busy')
  expect(waitingFor({ ...FACTS, served: false, draining: true })).toEqual({
    reason: 'draining',
    message: 'The workers of the queue media drain, so they take no new jobs',
    queue: 'media',
    command: 'ichido workers resume NAME',
  })
})

test('workers that hold nothing are not busy', () => {
  const message = (changes: Partial<WaitingFacts>) => waitingFor({ ...FACTS, ...changes })?.message
  expect(message({ running: 2 })).toBe('The workers of the queue media are busy: they hold 2')
  expect(message({ askedAgoMs: 12_400 })).toBe(
    'A worker of the queue media was seen 12 s ago and has not asked for work since',
  )
  expect(message({})).toBe('A worker of the queue media was seen recently, but it does not ask for work')
})

test('a dead letter whose redrive waits for a quota', () => {
  const redrive = { redriveId: 'r', maxConcurrent: 2, inUse: 2 }
  expect(waitingFor({ ...FACTS, state: 'FAILED', redrive })).toMatchObject({ reason: 'quota', redrive_id: 'r' })
  expect(reason({ state: 'FAILED', redrive: { ...redrive, inUse: 1 } })).toBeNull()
  expect(reason({ state: 'FAILED', redrive: { ...redrive, maxConcurrent: null } })).toBeNull()
})
