import { expect, test } from 'vitest'
import type { Row, Step } from '../statement.ts'
import { findLastTags, giveTags, type Place } from './fair-tags.ts'

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

test('tags follow the user’s last tag, the queue’s time and this node’s leases', () => {
  const [ann, bob] = [
    { queue: 'q', userId: 'ann', priority: 0 },
    { queue: 'q', userId: 'bob', priority: 0 },
  ]
  const urgent = { ...ann, priority: 1 }
  const found: Row[] = [
    { queue: 'q', user_id: 'ann', priority: 0, time: 5, last: 20 },
    { queue: 'q', user_id: 'bob', priority: 0, time: 5, last: null },
    { queue: 'q', user_id: 'ann', priority: 1, time: 3, last: null },
  ]
  const runs = [bob, ann, bob, urgent, ann]
  const tagsOf = (leased: number) => {
    const work = giveTags(runs, [{ queue: 'q', priority: 0, tag: leased }])
    expect(work.next().value, 'each place is read once').toMatchObject({ rows: { length: 3 } })
    const { value } = work.next(found.map((row) => ({ ...row })))
    return Array.isArray(value) ? value.map(({ fairTag }) => fairTag) : null
  }
  expect(tagsOf(0)).toEqual([6, 21, 7, 4, 22])
  expect(tagsOf(10)).toEqual([11, 21, 12, 4, 22])
})
