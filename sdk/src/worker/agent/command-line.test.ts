import { expect, onTestFinished, test, vi } from 'vitest'
import { readCommandLine, untilStopped } from './command-line.ts'
import { nodeWorld } from './world.ts'

test('a signal that repeats within a second counts once; a later one counts again', async () => {
  const nowMs = vi.spyOn(nodeWorld, 'monotonic').mockReturnValue(5_000)
  const before = new Set([...process.listeners('SIGTERM'), ...process.listeners('SIGINT')])
  onTestFinished(() => {
    nowMs.mockRestore()
    for (const name of ['SIGTERM', 'SIGINT'] as const) {
      for (const listener of process.listeners(name)) if (!before.has(listener)) process.removeListener(name, listener)
    }
  })
  const said: string[] = []
  const stop = vi.fn()
  const ended = Promise.withResolvers<null>()
  const running = untilStopped(
    async () => ({ stop, running: () => 1, ended: ended.promise }),
    (line) => void said.push(line),
  )
  await Promise.resolve()
  const ours = process.listeners('SIGTERM').filter((listener) => !before.has(listener))
  const signal = () => {
    for (const listener of ours) listener('SIGTERM')
  }
  signal()
  nowMs.mockReturnValue(5_999)
  signal()
  expect(stop).toHaveBeenCalledTimes(1)
  nowMs.mockReturnValue(6_000)
  signal()
  expect(stop).toHaveBeenCalledTimes(2)
  ended.resolve(null)
  await running
  expect(said).toEqual(['takes no more work and waits for its runs; press Ctrl-C again to stop them', 'stopped'])
})

const drainMs = (...args: string[]) =>
  readCommandLine(['--url', 'http://127.0.0.1', '--exec', 'ls', ...args], {})?.drainMs

test.each([
  [[], 30_000],
  [['--drain', '45'], 45_000],
  [['--drain', '0'], 0],
  [['--drain', '500ms'], 500],
  [['--drain', '10m'], 600_000],
  [['--drain', '1.5h'], 5_400_000],
  [['--drain', '7d'], 604_800_000],
])('%j is a drain of %d ms', (args, expected) => {
  expect(drainMs(...args)).toBe(expected)
})

test.each(['', 'soon', '-1', '1w', '10 m', '1e3', '36501d', '999999999d'])(
  'a drain of %j is refused by name',
  (text) => {
    expect(() => drainMs(`--drain=${text}`)).toThrow(
      '--drain must be a time like 30s, 10m, 2h or 7d, and at most 36500d',
    )
  },
)
