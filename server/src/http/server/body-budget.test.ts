import { expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { BodyBudget } from './body-budget.ts'

const MIB = 1024 * 1024

test('a sender waits for room of its own, and others do not wait for it', () => {
  const budget = new BodyBudget(new FakeWorld())
  const entered: string[] = []
  const take = (sender: string, mib: number) => budget.take(sender, mib * MIB, () => entered.push(`${sender} ${mib}`))
  const first = take('a', 10)
  const second = take('a', 7)
  take('a', 6)
  take('b', 16)
  expect(entered).toEqual(['a 10', 'a 6', 'b 16'])
  first()
  first()
  expect(entered.at(-1)).toBe('a 7')
  second()
  expect(entered).toHaveLength(4)
})

test('all senders together have so much, whoever gives up waiting is not let in', () => {
  const budget = new BodyBudget(new FakeWorld())
  const entered: number[] = []
  const giveBack = Array.from({ length: 10 }, (_, i) => budget.take(`user ${i}`, 16 * MIB, () => entered.push(i)))
  expect(entered).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
  giveBack[8]?.()
  giveBack[3]?.()
  expect(entered).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 9])
  for (const one of giveBack) one()
  budget.take('alone', 1000 * MIB, () => entered.push(1000))
  expect(entered.at(-1)).toBe(1000)
})

test('a sender that sends without a pause is let in twice a second', async () => {
  const world = new FakeWorld()
  const budget = new BodyBudget(world)
  let entered = 0
  const send = () => {
    const giveBack = budget.take('a', 16 * MIB, () => {
      entered++
      world.soon(() => {
        giveBack()
        send()
      })
    })
  }
  send()
  await settled()
  expect(entered).toBe(2)
  for (let i = 0; i < 4; i++) {
    await world.pass(500)
    await settled()
    expect(entered).toBe(3 + i)
  }
  let other = false
  budget.take('b', 16 * MIB, () => {
    other = true
  })
  expect(other).toBe(true)
})
