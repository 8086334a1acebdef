import { expect, test } from 'vitest'
import { FAILURES_MAX, FailureLimit, WINDOW_MS } from './failure-limit.ts'

test('an address may fail so often in a window, then it waits for the end of the window', () => {
  let nowMs = 0
  const limit = new FailureLimit({ monotonic: () => nowMs })
  for (let i = 0; i < FAILURES_MAX; i++) expect(limit.record('a')).toBeNull()
  expect(limit.record('a')).toBe(WINDOW_MS / 1000)
  expect(limit.record('b')).toBeNull()
  nowMs = WINDOW_MS - 1
  expect(limit.record('a')).toBe(1)
  nowMs = WINDOW_MS
  expect(limit.record('a')).toBeNull()
})

test('the oldest of many addresses is forgotten: the memory is bounded', () => {
  const limit = new FailureLimit({ monotonic: () => 0 })
  for (let i = 0; i <= FAILURES_MAX; i++) limit.record('the first')
  for (let i = 0; i < 10_000; i++) limit.record(`address ${i}`)
  expect(limit.record('the first')).toBeNull()
  for (let i = 1; i < FAILURES_MAX; i++) limit.record('address 9999')
  expect(limit.record('address 9999')).not.toBeNull()
})
