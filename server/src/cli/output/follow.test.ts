import type { JobEvent } from '@ichido/sdk/client'
import type { JobDetail } from '@ichido/sdk/protocol'
import { beforeEach, expect, test } from 'vitest'
import { FailedAttempts } from './follow.ts'

const instant = (second: number) => new Date(Date.UTC(2031, 4, 6, 7, 8, second)).toISOString()
const move = (state: string, attempt: number) => ({ stage: 'run', data: { state, attempt } }) as JobEvent
const run = (attempt: number, error: JobDetail['error'], runAt = 0, finishedAt = 0) => ({
  attempt,
  error,
  run_at: instant(runAt),
  finished_at: error && instant(finishedAt),
})

let job: { runs: ReturnType<typeof run>[] } | null
let reads: number
let failed: FailedAttempts
beforeEach(() => {
  reads = 0
  failed = new FailedAttempts(async () => {
    reads++
    return structuredClone(job) as unknown as JobDetail | null
  })
})

const exit = { code: 'EXIT_2', message: 'The program exited\nwith code 2' }

test('each failed attempt has its reason and the next due time, for one request', async () => {
  job = { runs: [run(1, exit, 0, 5), run(1, null, 15)] }
  for (const state of ['PENDING', 'ASSIGNED', 'RUNNING']) expect(await failed.whyOf(move(state, 1))).toBeNull()
  expect(reads).toBe(0)
  const why = 'EXIT_2: The program exited with code 2'
  expect(await failed.whyOf(move('FAILED', 1))).toBe(`${why} (the next attempt is due 10 s later)`)
  expect(reads).toBe(1)
  job = { runs: [run(1, exit, 0, 5), run(2, { code: 'WORKER_LOST', message: 'Gone' }, 15, 20)] }
  expect(await failed.whyOf(move('TIMED_OUT', 2))).toBe('WORKER_LOST: Gone')
  expect(reads).toBe(2)
})

test('several earlier failures need one request', async () => {
  const enoent = { code: 'ENOENT', message: 'ENOENT: no such file' }
  job = { runs: [run(1, enoent, 0, 1), run(3, exit, 2, 3), run(4, null, 5)] }
  expect(await failed.whyOf(move('FAILED', 1))).toBe('ENOENT: no such file (the next attempt is due 1 s later)')
  expect(await failed.whyOf(move('FAILED', 3))).toContain('EXIT_2: ')
  expect(reads).toBe(1)
})

test('a long message is cut; an unreadable job and other events yield nothing', async () => {
  job = null
  expect(await failed.whyOf(move('FAILED', 1))).toBeNull()
  expect(await failed.whyOf({ stage: 'progress', data: { state: 'FAILED' } } as unknown as JobEvent)).toBeNull()
  job = { runs: [run(1, { code: 'E', message: '💥'.repeat(1000) })] }
  const why = (await failed.whyOf(move('FAILED', 1))) ?? ''
  expect(why).toMatch(/^E: (💥)+�?…$/u)
  expect(why.length).toBeLessThanOrEqual(300)
})
