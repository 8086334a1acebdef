import { expect, onTestFinished, test, vi } from 'vitest'
import { onStopSignals, STOP_SIGNALS } from './signals.ts'

test('what comes again within a second is the same signal; a later one ends it at once', () => {
  const nowMs = vi.spyOn(performance, 'now').mockReturnValue(5_000)
  const before = new Set(STOP_SIGNALS.flatMap((name) => process.listeners(name)))
  onTestFinished(() => {
    nowMs.mockRestore()
    for (const name of STOP_SIGNALS) {
      for (const listener of process.listeners(name)) if (!before.has(listener)) process.removeListener(name, listener)
    }
  })
  const [stop, stopAtOnce] = [vi.fn(), vi.fn()]
  onStopSignals(stop, stopAtOnce)
  const signal = (name: (typeof STOP_SIGNALS)[number]) => {
    for (const listener of process.listeners(name)) if (!before.has(listener)) listener(name)
  }
  signal('SIGINT')
  nowMs.mockReturnValue(5_999)
  signal('SIGINT')
  // As the script that npm runs does when npm ends before it.
  signal('SIGTERM')
  expect([stop.mock.calls.length, stopAtOnce.mock.calls.length]).toEqual([1, 0])
  nowMs.mockReturnValue(6_000)
  signal('SIGTERM')
  expect([stop.mock.calls.length, stopAtOnce.mock.calls.length]).toEqual([1, 1])
})
