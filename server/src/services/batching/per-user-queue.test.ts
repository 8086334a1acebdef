import { expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { realWorld } from '../../node/world.ts'
import { PerUserQueue } from './per-user-queue.ts'

test('a user’s calls come one after the other, whatever becomes of them; others do not wait for it', async () => {
  const turns = new PerUserQueue(realWorld)
  const begun: string[] = []
  const open = new Map<string, PromiseWithResolvers<string>>()
  const call = (user: string, name: string) =>
    turns.take(user, () => {
      begun.push(name)
      const call = Promise.withResolvers<string>()
      open.set(name, call)
      return call.promise
    })
  const first = call('a', 'a1')
  const failing = call('a', 'a2').catch(String)
  const third = call('a', 'a3')
  const other = call('b', 'b1')
  await settled()
  expect(begun).toEqual(['a1', 'b1'])
  open.get('b1')?.resolve('b1')
  expect(await other).toBe('b1')
  open.get('a1')?.resolve('a1')
  expect(await first).toBe('a1')
  await settled()
  open.get('a2')?.reject(new Error('no'))
  expect(await failing).toBe('Error: no')
  await settled()
  open.get('a3')?.resolve('a3')
  expect(await third).toBe('a3')
  expect(begun).toEqual(['a1', 'b1', 'a2', 'a3'])
})

test('who has waited for too long hears so and is not carried out later; those behind it still wait for their turn', async () => {
  const world = new FakeWorld()
  const turns = new PerUserQueue(world)
  const first = Promise.withResolvers<string>()
  const begun: string[] = []
  const call = (name: string, answer: Promise<string>) =>
    turns.take('a', () => {
      begun.push(name)
      return answer
    })
  const held = call('a1', first.promise)
  const late = call('a2', Promise.resolve('a2')).catch((error: unknown) => error)
  await world.pass(10_000)
  const later = call('a3', Promise.resolve('a3'))
  await world.pass(5_000)
  expect(await late).toBeInstanceOf(StoreUnavailable)
  expect(begun).toEqual(['a1'])
  first.resolve('a1')
  expect(await Promise.all([held, later])).toEqual(['a1', 'a3'])
  expect(begun).toEqual(['a1', 'a3'])
})
