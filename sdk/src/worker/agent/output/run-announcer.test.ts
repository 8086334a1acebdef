import { expect, test } from 'vitest'
import { FakeWorld } from '../../../../../scripts/testing/fake-world.ts'
import type { Outcome, RunInHand } from '../../loop/loop.ts'
import { outcomeText, RunAnnouncer } from './run-announcer.ts'

test('a line when a run begins and one when it ends, with how it ended and how long it took', async () => {
  const world = new FakeWorld()
  const said: string[] = []
  const announcer = new RunAnnouncer((line) => void said.push(line), world)
  const run = { lease: { job_id: 'j', kind: 'k', attempt: 2 } } as RunInHand
  const failure = { code: 'EXIT_3', message: 'no \x1b[31mred\nand more', retryable: true }
  const canceled = { code: 'CANCELED', message: 'The job was canceled', retryable: true }
  const outcomes: Outcome[] = [{ result: { result: 1 } }, { failure }, { failure: canceled }, 'released']
  for (const outcome of outcomes) {
    let end = () => {}
    const work = announcer.of(() => new Promise((resolve) => (end = () => resolve(outcome))))
    const ended = work(run)
    expect(announcer.running).toBe(1)
    await world.pass(1_500)
    end()
    expect(await ended).toBe(outcome)
    expect(announcer.running).toBe(0)
  }
  expect(said).toEqual([
    'job j (k, attempt 2) began',
    'job j (k, attempt 2) succeeded, after 1.5 s',
    'job j (k, attempt 2) began',
    'job j (k, attempt 2) failed with EXIT_3: no  [31mred, after 1.5 s',
    'job j (k, attempt 2) began',
    'job j (k, attempt 2) canceled, after 1.5 s',
    'job j (k, attempt 2) began',
    'job j (k, attempt 2) released, after 1.5 s',
  ])
})

test.each([
  ['ENOENT', 'ENOENT: no such file', 'failed with ENOENT: no such file'],
  [
    'EXIT_2',
    `${'b'.repeat(300)} No such file`,
    `failed with EXIT_2: ${'b'.repeat(72)} … ${'b'.repeat(107)} No such file`,
  ],
])('a failure %s is said once, from its beginning to its end', (code, message, said) => {
  expect(outcomeText({ failure: { code, message, retryable: true } })).toBe(said)
})
