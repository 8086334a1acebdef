import fc from 'fast-check'
import { beforeEach, expect, test } from 'vitest'
import { settled } from '../../../../scripts/testing/fake-world.ts'
import { BadValue, LockTimeout } from '../../core/node/store-errors.ts'
import { realWorld } from '../../node/world.ts'
import { Batcher, type BatcherOptions } from './batcher.ts'

interface Item {
  user: string
  n: number
  bytes?: number
}

/** A store that commits when the test tells it to. */
class Commits {
  readonly batches: Item[][] = []
  readonly #open: { items: Item[]; settle(run: () => string[]): void }[] = []
  mostAtOnce = 0

  run(items: Item[]): Promise<string[]> {
    this.batches.push(items)
    return new Promise((resolve, reject) => {
      this.#open.push({
        items,
        settle(run) {
          try {
            resolve(run())
          } catch (error) {
            reject(error)
          }
        },
      })
      this.mostAtOnce = Math.max(this.mostAtOnce, this.#open.length)
    })
  }

  get underWay(): number {
    return this.#open.length
  }

  /** Ends the oldest running batch, or the one at this index. */
  async commit(outcomes: (items: Item[]) => string[] = names, place = 0): Promise<void> {
    const [batch] = this.#open.splice(place, 1)
    if (batch === undefined) throw new Error('No batch is under way')
    batch.settle(() => outcomes(batch.items))
    await settled()
  }
}

const name = ({ user, n }: Item) => `${user}${n}`
const names = (items: Item[]) => items.map(name)
const some = (user: string, count: number, from = 0): Item[] =>
  Array.from({ length: count }, (_, i) => ({ user, n: from + i }))

const heldUp = () => {
  throw new LockTimeout('somebody keeps the row')
}

let commits: Commits
beforeEach(() => {
  commits = new Commits()
})

function batcher(changes: Partial<BatcherOptions<Item, string>> = {}): Batcher<Item, string> {
  const after = () => {
    throw new Error('A batcher waits for no timer')
  }
  return new Batcher<Item, string>({
    name: 'test',
    world: { ...realWorld, after },
    itemsMax: 100,
    bytesMax: 1_000,
    inFlightMax: 1,
    run: (items) => commits.run(items),
    bytesOf: ({ bytes = 1 }) => bytes,
    userOf: ({ user }) => user,
    ...changes,
  })
}

test('a single item does not wait', async () => {
  const outcome = batcher().add({ user: 'a', n: 1 })
  await settled()
  expect(commits.batches).toEqual([[{ user: 'a', n: 1 }]])
  await commits.commit()
  await expect(outcome).resolves.toBe('a1')
})

test('items of one turn are a batch, and items during its commit are the next', async () => {
  const b = batcher()
  const outcomes = some('a', 3).map((item) => b.add(item))
  await settled()
  for (const n of [3, 4]) {
    outcomes.push(b.add({ user: 'a', n }))
    await settled()
  }
  expect(commits.batches.map(names)).toEqual([['a0', 'a1', 'a2']])
  await commits.commit()
  expect(commits.batches.map(names)).toEqual([
    ['a0', 'a1', 'a2'],
    ['a3', 'a4'],
  ])
  await commits.commit()
  await expect(Promise.all(outcomes)).resolves.toEqual(['a0', 'a1', 'a2', 'a3', 'a4'])
})

test('two batches share the waiting items, and a third never begins', async () => {
  const b = batcher({ inFlightMax: 2, itemsMax: 10 })
  const outcomes = some('a', 30).map((item) => b.add(item))
  await settled()
  expect(commits.batches.map((batch) => batch.length)).toEqual([10, 10])
  while (commits.underWay > 0) await commits.commit()
  expect(commits.mostAtOnce).toBe(2)
  await expect(Promise.all(outcomes)).resolves.toEqual(names(some('a', 30)))
})

test('a large call is its own batch, and the next one runs beside it', async () => {
  const b = batcher({ inFlightMax: 2, itemsMax: 10, sharedOutMax: 4 })
  const first = b.addAll(some('a', 6), (item) => item)
  await settled()
  expect(commits.batches.map((batch) => batch.length)).toEqual([6])
  const second = b.addAll(some('b', 5), (item) => item)
  await settled()
  expect(commits.batches.map((batch) => batch.length)).toEqual([6, 5])
  while (commits.underWay > 0) await commits.commit()
  await Promise.all([first, second])
})

test('few items wait for the running batch instead of running beside it', async () => {
  const b = batcher({ inFlightMax: 2, besideMin: 3 })
  const outcomes = some('a', 5).map((item) => b.add(item))
  const add = async (n: number) => {
    outcomes.push(b.add({ user: 'a', n }))
    await settled()
  }
  await settled()
  // Too few items for two batches.
  expect(commits.batches.map(names)).toEqual([['a0', 'a1', 'a2', 'a3', 'a4']])
  for (const n of [5, 6]) await add(n)
  expect(commits.batches).toHaveLength(1)
  await add(7)
  expect(commits.batches.map(names)[1]).toEqual(['a5', 'a6', 'a7'])
  await commits.commit()
  await add(8)
  expect(commits.batches).toHaveLength(2)
  await commits.commit()
  expect(commits.batches.map(names)[2]).toEqual(['a8'])
  await commits.commit()
  for (const item of some('b', 6)) outcomes.push(b.add(item))
  await settled()
  expect(commits.batches.slice(3).map((batch) => batch.length)).toEqual([3, 3])
  while (commits.underWay > 0) await commits.commit()
  await Promise.all(outcomes)
})

test('a batch is limited in items and bytes, and a larger item goes alone', async () => {
  const b = batcher({ itemsMax: 3, bytesMax: 10 })
  const sizes = [4, 4, 4, 50, 1, 1, 1, 1]
  const outcomes = sizes.map((bytes, n) => b.add({ user: 'a', n, bytes }))
  await settled()
  while (commits.underWay > 0) await commits.commit()
  expect(commits.batches.map(names)).toEqual([['a0', 'a1'], ['a2'], ['a3'], ['a4', 'a5', 'a6'], ['a7']])
  await Promise.all(outcomes)
})

test('a user with 10,000 items delays others by one batch at most', async () => {
  const b = batcher({ itemsMax: 100 })
  const outcomes = some('much', 10_000).map((item) => b.add(item))
  await settled()
  outcomes.push(b.add({ user: 'few', n: 1 }))
  await commits.commit()
  expect(commits.batches).toHaveLength(2)
  expect(commits.batches[1]).toContainEqual({ user: 'few', n: 1 })
  while (commits.underWay > 0) await commits.commit()
  expect(commits.batches).toHaveLength(101)
  expect(commits.batches.flat().filter(({ user }) => user === 'much')).toEqual(some('much', 10_000))
  await Promise.all(outcomes)
})

test('users take turns', async () => {
  const b = batcher({ itemsMax: 2 })
  const outcomes = ['a', 'b', 'c'].flatMap((user) => some(user, 2).map((item) => b.add(item)))
  await settled()
  while (commits.underWay > 0) await commits.commit()
  expect(commits.batches.map(names)).toEqual([
    ['a0', 'b0'],
    ['c0', 'a1'],
    ['b1', 'c1'],
  ])
  await Promise.all(outcomes)
})

test('a bad value is rejected alone, and its neighbours keep their order', async () => {
  const b = batcher()
  const outcomes = Promise.allSettled(some('a', 8).map((item) => b.add(item)))
  await settled()
  const committed: string[] = []
  const refusing = (items: Item[]) => {
    if (items.some(({ n }) => n === 5)) throw new BadValue('five')
    committed.push(...names(items))
    return names(items)
  }
  while (commits.underWay > 0) await commits.commit(refusing)
  expect(committed).toEqual(['a0', 'a1', 'a2', 'a3', 'a4', 'a6', 'a7'])
  expect((await outcomes).map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : outcome.reason))).toEqual([
    ...['a0', 'a1', 'a2', 'a3', 'a4'],
    new BadValue('five'),
    ...['a6', 'a7'],
  ])
})

test('any other error fails the whole batch, and the next one runs', async () => {
  const b = batcher()
  const outcomes = Promise.allSettled(some('a', 3).map((item) => b.add(item)))
  await settled()
  await commits.commit(() => {
    throw new Error('out of reach')
  })
  expect(commits.batches).toHaveLength(1)
  for (const outcome of await outcomes) expect(outcome).toMatchObject({ reason: { message: 'out of reach' } })
  const next = b.add({ user: 'a', n: 9 })
  await settled()
  await commits.commit()
  await expect(next).resolves.toBe('a9')
})

test('a missing outcome fails only that item', async () => {
  const b = batcher()
  const outcomes = Promise.allSettled(some('a', 2).map((item) => b.add(item)))
  await settled()
  await commits.commit(() => ['a0'])
  expect(await outcomes).toMatchObject([{ value: 'a0' }, { reason: { message: 'test: no outcome for item 1' } }])
})

test.each(['bytesOf', 'userOf'] as const)('an item for which %s throws fails only its own caller', async (asked) => {
  const b = batcher({
    [asked]({ user, n }: Item) {
      if (n === 1) throw new Error('cannot be measured')
      return asked === 'bytesOf' ? 1 : user
    },
  })
  const outcomes = Promise.allSettled(some('a', 3).map((item) => b.add(item)))
  await settled()
  await commits.commit()
  expect(await outcomes).toMatchObject([
    { value: 'a0' },
    { reason: { message: 'cannot be measured' } },
    { value: 'a2' },
  ])
})

test('reports the size of each batch', async () => {
  const told: { name: string; items: number; elapsedMs: number }[] = []
  const b = batcher({ onBatch: (batch) => told.push(batch) })
  const outcomes = some('a', 4).map((item) => b.add(item))
  await settled()
  await commits.commit()
  await Promise.all(outcomes)
  expect(told).toEqual([{ name: 'test', items: 4, elapsedMs: expect.any(Number) }])
})

test('in any order of arrivals and commits, every item gets its outcome once', async () => {
  const arrival = fc.record({
    arrive: fc.array(fc.record({ user: fc.constantFrom('a', 'b', 'c'), bytes: fc.integer({ min: 0, max: 12 }) }), {
      maxLength: 6,
    }),
    bad: fc.boolean(),
  })
  const step = fc.oneof(
    arrival,
    fc.record({ commitAt: fc.nat({ max: 4 }), ends: fc.constantFrom('well', 'broken', 'held') }),
  )
  const limits = fc.record({
    itemsMax: fc.integer({ min: 1, max: 5 }),
    bytesMax: fc.integer({ min: 1, max: 20 }),
    inFlightMax: fc.integer({ min: 1, max: 3 }),
    besideMin: fc.integer({ min: 1, max: 7 }),
  })
  await fc.assert(
    fc.asyncProperty(limits, fc.array(step, { maxLength: 30 }), async (limit, steps) => {
      commits = new Commits()
      const b = batcher(limit)
      const bad = new Set<number>()
      const broken = new Set<number>()
      const seen: string[] = []
      const outcomes: Promise<void>[] = []
      let n = 0
      const end = (how: 'well' | 'broken' | 'held') => (items: Item[]) => {
        if (how === 'held') heldUp()
        if (how === 'broken') {
          for (const item of items) broken.add(item.n)
          throw new Error('broken')
        }
        if (items.some((item) => bad.has(item.n))) throw new BadValue('bad')
        return names(items)
      }
      const add = (item: Item) =>
        b.add(item).then(
          (outcome) => seen.push(`${item.n} ${outcome}`),
          (error: Error) => seen.push(`${item.n} ${error.message}`),
        )
      for (const s of steps) {
        if ('arrive' in s) {
          for (const { user, bytes } of s.arrive) {
            if (s.bad) bad.add(n)
            outcomes.push(add({ user, bytes, n: n++ }).then(() => {}))
          }
          await settled()
        } else if (commits.underWay > 0) await commits.commit(end(s.ends), s.commitAt % commits.underWay)
      }
      while (commits.underWay > 0) await commits.commit(end('well'))
      await Promise.all(outcomes)

      const users = new Map(commits.batches.flat().map((item) => [item.n, item.user]))
      const expected = Array.from({ length: n }, (_, i) => {
        const error = broken.has(i) ? 'broken' : bad.has(i) ? 'bad' : null
        return `${i} ${error ?? `${users.get(i)}${i}`}`
      })
      expect(seen.toSorted()).toEqual(expected.toSorted())
      // Two more batches for the blocked users.
      expect(commits.mostAtOnce).toBeLessThanOrEqual(limit.inFlightMax + 2)
      for (const batch of commits.batches) {
        expect(batch.length).toBeLessThanOrEqual(limit.itemsMax)
        const bytes = batch.reduce((sum, item) => sum + (item.bytes ?? 0), 0)
        if (batch.length > 1) expect(bytes).toBeLessThanOrEqual(limit.bytesMax)
      }
    }),
    { numRuns: 300 },
  )
})

test('a call gets its outcomes in order, across batches and with a bad item', async () => {
  const all = batcher({ itemsMax: 2 }).addAll([0, 1, 2, 3], (n) => {
    if (n === 1) throw new Error('no item')
    return { user: 'a', n }
  })
  await settled()
  await commits.commit()
  await commits.commit()
  expect(commits.batches.map(names)).toEqual([['a0', 'a2'], ['a3']])
  expect(await all).toEqual([
    { status: 'fulfilled', value: 'a0' },
    { status: 'rejected', reason: new Error('no item') },
    { status: 'fulfilled', value: 'a2' },
    { status: 'fulfilled', value: 'a3' },
  ])
  expect(await batcher().addAll([], () => ({ user: 'a', n: 0 }))).toEqual([])
})

test('a batch grows while items arrive, and then runs beside the running one', async () => {
  const turns: (() => void)[] = []
  const turn = () => turns.splice(0).forEach((act) => void act())
  const soon = (act: () => void) => void turns.push(act)
  const lines = batcher({ inFlightMax: 2, world: { ...realWorld, soon } })
  void lines.add({ user: 'a', n: 0 })
  turn()
  void lines.add({ user: 'a', n: 1 })
  for (const n of [2, 3]) {
    void lines.add({ user: 'a', n })
    turn()
  }
  expect(commits.batches.map(names)).toEqual([['a0']])
  turn()
  expect(commits.batches.map(names)).toEqual([['a0'], ['a1', 'a2', 'a3']])
})

test('a blocked user does not delay others, and its later items continue', async () => {
  const told: string[] = []
  const given = batcher()
  const add = (item: Item) => void given.add(item).then((outcome) => told.push(outcome))
  for (const user of ['a', 'b', 'c']) add({ user, n: 0 })
  await settled()
  await commits.commit(heldUp)
  expect(commits.batches.slice(1).map(names), 'two at a time').toEqual([['a0'], ['b0']])
  for (const user of ['a', 'b', 'd']) add({ user, n: 1 })
  await settled()
  expect(commits.batches.slice(3).map(names), 'a and b are still apart').toEqual([['d1']])
  await commits.commit(heldUp)
  expect(commits.batches.slice(4).map(names), 'who may be free goes before who is held').toEqual([['c0']])
  while (told.length < 4) await commits.commit((items) => (items[0]?.user === 'a' ? heldUp() : names(items)))
  expect(told).toEqual(['b0', 'd1', 'c0', 'b1'])
  while (commits.underWay > 0) await commits.commit()
  expect(told).toEqual(['b0', 'd1', 'c0', 'b1', 'a0', 'a1'])
})

test('a blocked batch of one user makes room for others, too', async () => {
  const given = batcher()
  const held = given.add({ user: 'a', n: 0 })
  await settled()
  await commits.commit(heldUp)
  const other = given.add({ user: 'b', n: 0 })
  await settled()
  expect(commits.batches.map(names)).toEqual([['a0'], ['a0'], ['b0']])
  await commits.commit(names, 1)
  expect(await other).toBe('b0')
  await commits.commit()
  expect(await held).toBe('a0')
})

test('blocked users take turns in one lane, and others do not wait', async () => {
  const given = batcher()
  const outcomes = ['a', 'b', 'c', 'd', 'e'].map((user) => given.add({ user, n: 0 }))
  await settled()
  await commits.commit(heldUp)
  const isHeld = (user: string) => user !== 'e'
  const tries: string[] = []
  for (let i = 0; i < 20; i++) {
    await commits.commit((items) => {
      tries.push(...names(items))
      return items.some(({ user }) => isHeld(user)) ? heldUp() : names(items)
    })
  }
  // At first nobody was known to be blocked, so both lanes were used. From then on blocked users have one lane.
  expect(commits.mostAtOnce).toBe(2)
  expect(commits.underWay).toBe(1)
  expect(tries.slice(0, 5)).toEqual(['a0', 'b0', 'c0', 'd0', 'e0'])
  expect(await outcomes[4]).toBe('e0')
  for (const user of ['a', 'b', 'c', 'd']) expect(tries.filter((one) => one === `${user}0`).length).toBeGreaterThan(3)
  const later = given.add({ user: 'f', n: 0 })
  await settled()
  await commits.commit(names, 1)
  expect(await later).toBe('f0')
  while (commits.underWay > 0) await commits.commit()
  expect(await Promise.all(outcomes)).toEqual(['a0', 'b0', 'c0', 'd0', 'e0'])
})

test('items of a blocked user are rejected at their own deadlines', async () => {
  let nowMs = 0
  const given = batcher({ world: { ...realWorld, monotonic: () => nowMs } })
  const told: string[] = []
  const add = (user: string, n: number) =>
    void given.add({ user, n }).then(
      () => told.push(`${user}${n}`),
      () => told.push(`${user}${n} not`),
    )
  for (const user of ['a', 'b']) add(user, 0)
  await settled()
  await commits.commit(heldUp)
  await commits.commit(heldUp)
  await commits.commit(heldUp)
  nowMs += 10_000
  add('a', 1)
  await commits.commit(heldUp)
  expect(told).toEqual([])
  nowMs += 5_000
  await commits.commit(heldUp)
  expect(told).toEqual(['a0 not', 'b0 not'])
  await commits.commit()
  expect(told.slice(2)).toEqual(['a1'])
  expect(commits.underWay).toBe(0)
})

test('a user that was blocked runs alone for a while', async () => {
  let nowMs = 0
  const given = batcher({ world: { ...realWorld, monotonic: () => nowMs } })
  const refused = given.add({ user: 'a', n: 0 }).catch(String)
  await settled()
  await commits.commit(heldUp)
  nowMs += 15_000
  await commits.commit(heldUp)
  expect(await refused).toContain('keeps the row')
  expect(commits.underWay).toBe(0)
  const outcomes = ['a', 'b'].map((user) => given.add({ user, n: 1 }))
  await settled()
  expect(commits.batches.slice(2).map(names)).toEqual([['a1'], ['b1']])
  while (commits.underWay > 0) await commits.commit()
  outcomes.push(...['a', 'b'].map((user) => given.add({ user, n: 2 })))
  await settled()
  expect(commits.batches.slice(4).map(names), 'carried out, it is one of many again').toEqual([['a2', 'b2']])
  while (commits.underWay > 0) await commits.commit()
  expect(await Promise.all(outcomes)).toEqual(['a1', 'b1', 'a2', 'b2'])
})
