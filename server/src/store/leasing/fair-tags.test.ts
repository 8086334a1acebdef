import { expect, test } from 'vitest'
import type { Row, Step } from '../statement.ts'
import { findLastTags, type Place } from './fair-tags.ts'

const places = Array.from({ length: 3 }, (_, i): Place => ({ queue: 'q', userId: `user ${i}`, priority: 0 }))

/** As the store would answer for a queue from which nothing, or so much, was leased. */
function answer(time: number | null, { statement }: Step): Row[] {
  if (statement.name === 'read_last_tags') {
    return places.map(({ queue, userId, priority }) => ({ queue, user_id: userId, priority, time, last: null }))
  }
  return [{ kind: 'k', fair_tag: 5 }]
}

test('a queue without leases is scanned for its first run once for all users', () => {
  const asked: string[] = []
  const work = findLastTags(places).work(false)
  let next = work.next()
  while (!next.done) {
    asked.push(next.value.statement.name)
    next = work.next(answer(null, next.value))
  }
  expect(next.value.map(({ timeTag }) => timeTag)).toEqual([5, 5, 5])
  expect(asked).toEqual([...new Set(asked)])
})

test('the tags of queues with leases take one statement', () => {
  const { fastPath, work } = findLastTags(places)
  const settle = (time: number | null) => fastPath?.settle(answer(time, fastPath.step))
  const first = work(false)
  const { value: step } = first.next()
  expect(first.next(answer(7, step as Step))).toEqual({ done: true, value: settle(7) })
  expect(settle(7)).toHaveLength(places.length)
  expect(settle(null)).toBeNull()
})
