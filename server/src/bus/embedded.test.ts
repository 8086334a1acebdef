import { expect, test } from 'vitest'
import { EmbeddedBus } from './embedded.ts'

test('wakes the subscribers of a topic, and no others', async () => {
  const bus = new EmbeddedBus()
  const woken: string[] = []
  bus.subscribe('queue:a', () => woken.push('a1'))
  bus.subscribe('queue:a', () => woken.push('a2'))
  bus.subscribe('job:a', () => woken.push('job'))
  bus.wake(['queue:a', 'queue:nobody'])
  expect(woken).toEqual(['a1', 'a2'])
  bus.wakeAll()
  expect(woken).toEqual(['a1', 'a2', 'a1', 'a2', 'job'])
})

test('an ended subscription is not woken; ending it twice ends no other', async () => {
  const bus = new EmbeddedBus()
  const woken: number[] = []
  const end = bus.subscribe('queue:a', () => woken.push(1))
  end()
  bus.subscribe('queue:a', () => woken.push(2))
  end()
  bus.wake(['queue:a'])
  expect(woken).toEqual([2])
})

test('a woken subscriber may end its subscription or begin another', async () => {
  const bus = new EmbeddedBus()
  let woken = 0
  const ends = [1, 2, 3].map(() =>
    bus.subscribe('queue:a', () => {
      woken++
      for (const end of ends) end()
      bus.subscribe('queue:a', () => woken++)
    }),
  )
  bus.wake(['queue:a'])
  expect(woken).toBe(3)
  bus.wake(['queue:a'])
  expect(woken).toBe(6)
})

test('a closed bus wakes nobody', async () => {
  const bus = new EmbeddedBus()
  let woken = 0
  bus.subscribe('queue:a', () => woken++)
  await bus.close()
  bus.wake(['queue:a'])
  expect(woken).toBe(0)
})
