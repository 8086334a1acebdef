import { expect, test } from 'vitest'
import { FakeWorld } from '../../../../../scripts/testing/fake-world.ts'
import { IchidoError } from '../../../protocol/index.ts'
import type { Outcome, RunInHand } from '../../loop/loop.ts'
import { outcomeText, RunAnnouncer, Trouble } from './announcer.ts'

test('the start and the end of a run are announced, with outcome and duration', async () => {
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
])('the failure %s is shown once, and cut in the middle', (code, message, said) => {
  expect(outcomeText({ failure: { code, message, retryable: true } })).toBe(said)
})

function troubled() {
  const world = new FakeWorld()
  const said: string[] = []
  const failed: string[] = []
  const trouble = new Trouble({ say: (line) => said.push(line), fail: (why) => failed.push(why), world })
  return { world, said, failed, trouble }
}

const away = () => new IchidoError('UNAVAILABLE', 'ECONNREFUSED')

test('a drain is announced once, and again after a run began', async () => {
  const said: string[] = []
  const announcer = new RunAnnouncer((line) => void said.push(line), new FakeWorld())
  const drained = 'the control plane drains this worker: it gets no new jobs until it is resumed'
  for (let i = 0; i < 3; i++) announcer.draining()
  expect(said).toEqual([drained])
  await announcer.of(async () => 'released')({ lease: { job_id: 'j', kind: 'k', attempt: 1 } } as RunInHand)
  for (let i = 0; i < 3; i++) announcer.draining()
  expect(said.slice(3)).toEqual([drained])
})

test('each error is shown at most once a minute', async () => {
  const { world, said, trouble } = troubled()
  for (let i = 0; i < 3; i++) trouble.on(away())
  trouble.on(new Error('another'))
  await world.pass(59_999)
  trouble.on(away())
  expect(said).toEqual(['trouble: ECONNREFUSED', 'trouble: another'])
  await world.pass(1)
  trouble.on(away())
  expect(said).toEqual(['trouble: ECONNREFUSED', 'trouble: another', 'trouble: ECONNREFUSED'])
})

test('the end of an outage is shown once, and the next outage at once', () => {
  const { said, trouble } = troubled()
  trouble.over()
  trouble.on(away())
  trouble.over()
  trouble.over()
  trouble.on(away())
  expect(said).toEqual(['trouble: ECONNREFUSED', 'the control plane answers again', 'trouble: ECONNREFUSED'])
})

test('a refusal is not an outage; FORBIDDEN ends the worker', () => {
  const { said, failed, trouble } = troubled()
  trouble.on(new IchidoError('FORBIDDEN', 'revoked'))
  trouble.over()
  expect(said).toEqual(['trouble: revoked'])
  expect(failed).toEqual(['revoked'])
})
