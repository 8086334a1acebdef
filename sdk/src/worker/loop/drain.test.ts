import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import type { LeaseShape } from '../../protocol/index.ts'
import { LEASE, Plane } from '../testing/plane.ts'
import { type Outcome, type RunInHand, WorkerLoop } from './loop.ts'
import type { LeaseCall } from './ports.ts'

let plane: Plane
let begun: string[]
let ends: (() => void)[]
beforeEach(() => {
  plane = new Plane()
  begun = []
  ends = []
})

function loop(startAtOnce: boolean, concurrency = 1): WorkerLoop {
  const work = ({ lease }: RunInHand) =>
    new Promise<Outcome>((resolve) => {
      begun.push(lease.lease_id)
      ends.push(() => resolve({ result: { result: 'done' } }))
    })
  const deps = { transport: plane, world: new FakeWorld(), onTrouble() {} }
  return new WorkerLoop({ queues: ['q'], kinds: [], concurrency, startAtOnce, work }, deps)
}

const lease = (id: string): LeaseShape => ({ ...LEASE, lease_id: id })

test.each([true, false])('runs of an aborted poll are released (started at once: %s)', async (atOnce) => {
  const running = loop(atOnce)
  await settled()
  plane.work.push(lease('late'))
  const closing = running.close(30_000)
  await settled()
  for (const end of ends) end()
  await closing
  expect(begun).toEqual([])
  expect(plane.starts).toEqual([])
  expect(plane.reports).toEqual(['released'])
})

test('runs of a lost answer are collected and released', async () => {
  plane.lease = (call: LeaseCall, signal?: AbortSignal) => {
    plane.polls.push(call)
    if (call.waitMs === 0) return Promise.resolve([lease('lost')])
    return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
  }
  const running = loop(true)
  await settled()
  const closing = running.close(30_000)
  await settled()
  for (const end of ends) end()
  await closing
  expect(begun).toEqual([])
  expect(plane.polls.map(({ pollId }) => pollId)).toEqual(Array(2).fill(plane.polls[0]?.pollId))
  expect(plane.reports).toEqual(['released'])
})

test('runs that a report brings after close are released; others end normally', async () => {
  plane.work.push(lease('one'), lease('two'))
  const running = loop(true, 2)
  await settled()
  expect(begun).toEqual(['one', 'two'])
  const { report } = plane
  let answer = () => {}
  plane.report = async (reports, next) => {
    plane.work.push(lease('late'))
    const answered = await report.call(plane, reports, next)
    await new Promise<void>((resolve) => (answer = resolve))
    return answered
  }
  ends[0]?.()
  await settled()
  const closing = running.close(30_000)
  plane.report = report
  answer()
  await settled()
  expect(plane.reports).toEqual([{ result: 'done' }, 'released'])
  ends[1]?.()
  await closing
  expect(begun).toEqual(['one', 'two'])
  expect(plane.reports).toEqual([{ result: 'done' }, 'released', { result: 'done' }])
})
