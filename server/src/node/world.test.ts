import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { validate, version } from 'uuid'
import { afterEach, expect, test, vi } from 'vitest'
import { nodeArgs } from '../../../scripts/testing/services.ts'
import { realWorld } from './world.ts'

const COUNT = 100_000

afterEach(() => {
  vi.useRealTimers()
})

test('ids are UUIDv7 of the current time and rise within a process', () => {
  const before = Date.now()
  let last = ''
  for (let i = 0; i < COUNT; i++) {
    const id = realWorld.uuid()
    if (id <= last) throw new Error(`${id} came after ${last}`)
    last = id
    if (i % 100 === 0) expect([validate(id), version(id)]).toEqual([true, 7])
  }
  const madeAtMs = Number.parseInt(last.replace('-', '').slice(0, 12), 16)
  expect(madeAtMs).toBeGreaterThanOrEqual(before)
  expect(madeAtMs).toBeLessThanOrEqual(Date.now())
})

test('ids rise even when the clock goes back', () => {
  vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 5_000 })
  const ahead = realWorld.uuid()
  vi.setSystemTime(Date.now() - 60_000)
  const back = [realWorld.uuid(), realWorld.uuid()]
  expect([ahead, ...back]).toEqual([ahead, ...back].toSorted())
})

test('two processes never make the same id', async () => {
  const world = join(import.meta.dirname, 'world.ts')
  const script = `import { realWorld } from ${JSON.stringify(world)}
    for (let i = 0; i < ${COUNT}; i++) console.log(realWorld.uuid())`
  const args = [...nodeArgs, '--input-type=module', '--eval', script]
  const run = () => promisify(execFile)(process.execPath, args, { maxBuffer: 2 ** 26 })
  const outputs = await Promise.all([run(), run()])
  const ids = outputs.flatMap(({ stdout }) => stdout.trim().split('\n'))
  expect(ids).toHaveLength(2 * COUNT)
  expect(new Set(ids).size).toBe(2 * COUNT)
})

test('secrets have the given size, are safe for URLs, and differ', () => {
  const secrets = Array.from({ length: 100 }, () => realWorld.secret(32))
  for (const secret of secrets) expect(secret).toMatch(/^[\w-]{43}$/)
  expect(new Set(secrets).size).toBe(100)
})

test('a timer fires once, or never if it is canceled', () => {
  vi.useFakeTimers()
  let calls = 0
  const count = () => calls++
  realWorld.after(1_000, count)
  realWorld.after(1_000, count)()
  vi.advanceTimersByTime(999)
  expect(calls).toBe(0)
  vi.advanceTimersByTime(10_000)
  expect(calls).toBe(1)
})

test('a timer may be longer than setTimeout allows', () => {
  const days = (count: number) => count * 24 * 3600 * 1000
  vi.useFakeTimers()
  let calls = 0
  const count = () => calls++
  realWorld.after(days(60), count)
  const callOff = realWorld.after(days(60), count)
  vi.advanceTimersByTime(days(59))
  expect(calls).toBe(0)
  callOff()
  vi.advanceTimersByTime(days(1))
  expect(calls).toBe(1)
})
