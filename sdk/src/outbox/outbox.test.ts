import { beforeEach, describe, expect, test, vi } from 'vitest'
import { FakeWorld } from '../../../scripts/testing/fake-world.ts'
import { ForeignAnswer, NoAnswer, Transient } from '../client/errors.ts'
import type { OutboxChange, OutboxItem, Send } from './item.ts'
import { Outbox } from './outbox.ts'
import { answered, FakeNetwork, sharedLock } from './testing/given.ts'
import { MemoryDisk } from './testing/memory-store.ts'

let disk: MemoryDisk
let network: FakeNetwork
let world: FakeWorld
/** What arrived, in order. */
let arrived: string[]
/** What a body is answered with instead of being taken. */
let troubles: Map<unknown, unknown>

beforeEach(() => {
  disk = new MemoryDisk()
  network = new FakeNetwork()
  world = new FakeWorld()
  arrived = []
  troubles = new Map()
})

const send: Send<string, { taken: string }> = async ({ key, body }) => {
  arrived.push(`${key} ${body}`)
  if (troubles.has(body)) throw troubles.get(body)
  return { taken: body }
}

function open(given: { send?: Send<string, { taken: string }>; attemptsMax?: number } = {}) {
  return new Outbox({ store: disk.store(), send, lock: sharedLock(), network, world, ...given })
}

/** Puts each under its own text as the key. */
async function withItems(...bodies: string[]): Promise<Outbox<string, { taken: string }>> {
  const outbox = open()
  for (const body of bodies) await outbox.put(body, { key: body })
  return outbox
}

const brief = (items: readonly OutboxItem<string>[]) =>
  items.map((item) => `${item.body} ${item.status} ${item.attempts}`)

describe('delivery', () => {
  test('in the order of putting, each under its own key, and then they are gone', async () => {
    const outbox = await withItems('a', 'b', 'c')
    expect(brief(await outbox.list())).toEqual(['a queued 0', 'b queued 0', 'c queued 0'])
    expect(arrived).toEqual([])
    const flushed = await outbox.flush()
    expect(arrived).toEqual(['a a', 'b b', 'c c'])
    expect(flushed.map(({ status, answer }) => [status, answer])).toEqual([
      ['sent', { taken: 'a' }],
      ['sent', { taken: 'b' }],
      ['sent', { taken: 'c' }],
    ])
    expect(await outbox.list()).toEqual([])
  })

  test('what is put during a flush goes along with it', async () => {
    const outbox: Outbox<string, { taken: string }> = open({
      send: async (delivery, signal) => {
        if (delivery.body === 'a') await outbox.put('later', { key: 'later' })
        return send(delivery, signal)
      },
    })
    await outbox.put('a', { key: 'a' })
    await outbox.flush()
    expect(arrived).toEqual(['a a', 'later later'])
  })

  test('without a key it gets one of its own, the same at each attempt', async () => {
    const outbox = open()
    const [a, b] = [await outbox.put('x'), await outbox.put('x')]
    expect(a.key).toMatch(/^outbox-[0-9a-f-]{36}$/)
    expect(b.key).not.toBe(a.key)
    troubles.set('x', answered(503))
    await outbox.flush()
    await outbox.flush()
    expect(arrived).toEqual([`${a.key} x`, `${b.key} x`, `${a.key} x`, `${b.key} x`])
  })

  test('a second put of a key is the first one; with another body it is refused', async () => {
    const outbox = await withItems('a')
    const [kept] = await outbox.list()
    expect((await outbox.put('a', { key: 'a' })).id).toBe(kept?.id)
    await expect(outbox.put('other', { key: 'a' })).rejects.toThrow('The key a is kept in the outbox already')
    expect(brief(await outbox.list())).toEqual(['a queued 0'])
  })

  test('what the caller does to the object afterwards changes nothing', async () => {
    const sent: unknown[] = []
    const outbox = new Outbox<{ list: number[] }>({
      store: disk.store(),
      send: async ({ body }) => sent.push(body),
      lock: sharedLock(),
      network,
      world,
    })
    const body = { list: [1] }
    await outbox.put(body)
    body.list.push(2)
    await outbox.flush()
    expect(sent).toEqual([{ list: [1] }])
  })

  test.each([
    ['', /^key must be/],
    ['two words', /^key must be/],
    ['a\nb', /^key must be/],
    ['ключ', /^key must be/],
    ['k'.repeat(257), /^key must be/],
  ])('the key %j is refused, and nothing is kept', async (key, message) => {
    await expect(open().put('a', { key })).rejects.toThrow(message)
    expect(disk.items.size).toBe(0)
  })

  test.each([
    ['undefined', undefined, /^body must be JSON, not undefined/],
    ['a function', () => 1, /^body must be JSON, not function/],
    ['a BigInt', { n: 1n }, /^body must be JSON: .*BigInt/],
  ])('a body that is %s is refused, and nothing is kept', async (_, body, message) => {
    await expect(
      new Outbox({ store: disk.store(), send: async () => {}, lock: sharedLock(), network, world }).put(body),
    ).rejects.toThrow(message)
    expect(disk.items.size).toBe(0)
  })
})

describe('attempts', () => {
  test('being offline is none, however often and for however long', async () => {
    const outbox = await withItems('a', 'b')
    network.set(false)
    for (let i = 0; i < 5; i++) await outbox.flush()
    expect(arrived).toEqual([])
    network.set(true)
    const silences = [
      new NoAnswer('reset', { cause: new Error('ECONNRESET') }),
      new TypeError('Failed to fetch'),
      new DOMException('late', 'TimeoutError'),
    ]
    for (const error of [...silences, new Transient(new NoAnswer('late'), 'a'), new ForeignAnswer(200, '<html>', {})]) {
      troubles = new Map([
        ['a', error],
        ['b', error],
      ])
      await outbox.flush()
    }
    expect(brief(await outbox.list())).toEqual(['a queued 0', 'b queued 0'])
    troubles.clear()
    await outbox.flush()
    expect(arrived.slice(-2)).toEqual(['a a', 'b b'])
    expect(arrived.filter((line) => line === 'b b').length).toBeLessThan(
      arrived.filter((line) => line === 'a a').length,
    )
    expect(await outbox.list()).toEqual([])
  })

  test('a browser that finds out in the middle that it is offline does not try the rest', async () => {
    const outbox = open({
      send: async (delivery) => {
        arrived.push(delivery.key)
        network.isOnline = false
        throw new NoAnswer('gone')
      },
    })
    await outbox.put('a', { key: 'a' })
    await outbox.put('b', { key: 'b' })
    await outbox.flush()
    expect(arrived).toEqual(['a'])
    expect(brief(await outbox.list())).toEqual(['a queued 0', 'b queued 0'])
  })

  test('error answers are counted, and after the third it is given up and listed', async () => {
    const outbox = await withItems('a')
    troubles.set('a', answered(503))
    for (let i = 0; i < 5; i++) await outbox.flush()
    expect(arrived).toHaveLength(3)
    expect(await outbox.list()).toMatchObject([{ body: 'a', status: 'failed', attempts: 3, error: 'answered 503' }])
  })

  test.each([1, 5])('or after %i', async (attemptsMax) => {
    const outbox = open({ attemptsMax })
    await outbox.put('a')
    troubles.set('a', answered(500))
    for (let i = 0; i < 7; i++) await outbox.flush()
    expect(arrived).toHaveLength(attemptsMax)
  })

  test.each([0, -1, 1.5, Number.NaN])('attemptsMax %d is refused', (attemptsMax) => {
    expect(() => open({ attemptsMax })).toThrow('attemptsMax must be a whole number from 1 on')
  })

  test('what the client would not send again is given up at once', async () => {
    const outbox = await withItems('bad', 'quota', 'good')
    troubles.set('bad', answered(400)).set('quota', answered(409, { code: 'QUOTA_EXCEEDED' }))
    await outbox.flush()
    expect(brief(await outbox.list())).toEqual(['bad failed 1', 'quota failed 1'])
    expect(arrived).toEqual(['bad bad', 'quota quota', 'good good'])
  })

  test('retried by a person, it has as many attempts as a new one, in its old place', async () => {
    const outbox = await withItems('a', 'b')
    troubles.set('a', answered(400)).set('b', answered(503))
    await outbox.flush()
    const [a] = await outbox.list()
    const revived = await outbox.retry(a?.id ?? '')
    expect(revived).toMatchObject({ status: 'queued', attempts: 0 })
    expect(revived).not.toHaveProperty('error')
    troubles.clear()
    arrived = []
    await outbox.flush()
    expect(arrived).toEqual(['a a', 'b b'])
  })

  test('dropped, it is gone', async () => {
    const outbox = await withItems('a', 'b')
    const [a] = await outbox.list()
    await outbox.drop(a?.id ?? '')
    await outbox.flush()
    expect(arrived).toEqual(['b b'])
    for (const act of [outbox.drop(a?.id ?? ''), outbox.retry('never-there')]) {
      await expect(act).rejects.toThrow('There is no item')
    }
  })

  test('by itself it is tried again later, as late as the answer asks for, and the clock may be set back', async () => {
    const outbox = await withItems('a', 'b')
    troubles.set('a', answered(503)).set('b', answered(429, { retryAfterMs: 120_000 }))
    await outbox.flush({ onlyDue: true })
    arrived = []
    const tried = async (passMs: number) => {
      await world.pass(passMs)
      await outbox.flush({ onlyDue: true })
      return arrived.splice(0)
    }
    expect(await tried(14_000)).toEqual([])
    expect(await tried(4_000)).toEqual(['a a'])
    expect(await tried(90_000)).toEqual(['a a'])
    expect(await tried(30_000)).toEqual(['b b'])
    world.jump(-30 * 86_400_000)
    expect(await tried(0)).toEqual(['b b'])
  })
})

describe('an item that fails does not stop the others', () => {
  test.each([
    ['is refused', answered(400)],
    ['meets an error of the server', answered(500)],
    ['is a fault of the program', new Error('bug')],
  ])('one that %s', async (_, error) => {
    const outbox = await withItems('a', 'poison', 'b')
    troubles.set('poison', error)
    for (let i = 0; i < 4; i++) await outbox.flush()
    expect(arrived.filter((line) => !line.startsWith('poison'))).toEqual(['a a', 'b b'])
    expect(await outbox.list()).toMatchObject([{ body: 'poison', status: 'failed' }])
  })

  test('one that gets no answer where others get theirs is given up as well', async () => {
    const outbox = await withItems('poison', 'a')
    troubles.set('poison', new NoAnswer('reset'))
    await outbox.flush()
    expect(arrived).toEqual(['poison poison'])
    for (const more of ['b', 'c', 'd']) {
      await outbox.put(more, { key: more })
      await outbox.flush()
    }
    expect(await outbox.list()).toMatchObject([{ body: 'poison', status: 'failed', attempts: 3, error: 'reset' }])
    expect(arrived.filter((line) => !line.startsWith('poison'))).toEqual(['a a', 'b b', 'c c', 'd d'])
  })

  test('at once, where the server itself can be asked', async () => {
    network.asks = true
    const outbox = await withItems('poison', 'worse', 'a')
    troubles.set('poison', new NoAnswer('reset')).set('worse', new NoAnswer('reset'))
    await outbox.flush()
    expect(arrived.at(-1)).toBe('a a')
    expect(brief(await outbox.list())).toEqual(['poison queued 1', 'worse queued 1'])
  })

  test('however many there are', async () => {
    const poisons = ['p1', 'p2', 'p3']
    const outbox = await withItems(...poisons, 'a', 'b')
    for (const poison of poisons) troubles.set(poison, new NoAnswer('reset'))
    for (let i = 0; i < 6; i++) await outbox.flush()
    expect(arrived.filter((line) => !line.startsWith('p'))).toEqual(['a a', 'b b'])
    expect(await outbox.list()).toHaveLength(3)
  })

  test('but nothing is held against those that were tried while the network went and came', async () => {
    const outbox = await withItems('a', 'b', 'c', 'd')
    troubles.set('b', new NoAnswer('reset'))
    await outbox.flush()
    expect(brief(await outbox.list())).toEqual(['b queued 0', 'c queued 0', 'd queued 0'])
    // It is back when the next one is tried in the place of this one: it has its turn before all others.
    troubles.clear()
    let tries = 0
    const returning = open({
      send: async (delivery, signal) => {
        if (delivery.body === 'b' && ++tries < 3) throw new NoAnswer('reset')
        return send(delivery, signal)
      },
    })
    arrived = []
    await returning.flush()
    await returning.flush()
    expect(arrived).toEqual(['c c', 'b b', 'd d'])
    expect(await outbox.list()).toEqual([])
  })

  test('an error answer that `send` did not look at is no delivery', async () => {
    const outbox = new Outbox({
      store: disk.store(),
      send: async ({ body }) =>
        Response.json(
          { error: { code: 'UNAVAILABLE', message: 'The store is out of reach' } },
          { status: Number(body), headers: { 'retry-after': '100' } },
        ),
      lock: sharedLock(),
      network,
      world,
    })
    for (const body of [503, 422, 201]) await outbox.put(body)
    await outbox.flush()
    expect(await outbox.list()).toMatchObject([
      { body: 503, status: 'queued', error: 'The store is out of reach' },
      { body: 422, status: 'failed' },
    ])
    expect([...disk.items.values()][0]?.dueAtMs).toBeGreaterThanOrEqual(world.now() + 100_000)
  })
})

describe('what a page is told', () => {
  function listen(outbox: Outbox<string, { taken: string }>): string[] {
    const told: string[] = []
    outbox.onChange(({ item, dropped }: OutboxChange<string>) => {
      told.push(`${item.body} ${dropped ? 'dropped' : item.status}`)
    })
    return told
  }

  test('each change of each item', async () => {
    const outbox = open()
    const told = listen(outbox)
    const { id } = await outbox.put('a', { key: 'a' })
    expect(told.splice(0)).toEqual(['a saving', 'a queued'])
    troubles.set('a', answered(400))
    await outbox.flush()
    expect(told.splice(0)).toEqual(['a saving', 'a failed'])
    await outbox.retry(id)
    troubles.clear()
    await outbox.flush()
    expect(told.splice(0)).toEqual(['a queued', 'a saving', 'a sent'])
    const { id: other } = await outbox.put('b')
    await outbox.drop(other)
    expect(told).toEqual(['b saving', 'b queued', 'b dropped'])
  })

  test('while it is being written down or sent, it is listed as that', async () => {
    const gate = Promise.withResolvers<void>()
    const outbox = open({ send: (delivery, signal) => gate.promise.then(() => send(delivery, signal)) })
    const putting = outbox.put('a')
    expect(brief(await outbox.list())).toEqual(['a saving 0'])
    await putting
    const flushing = outbox.flush()
    await vi.waitFor(async () => expect(brief(await outbox.list())).toEqual(['a saving 0']))
    gate.resolve()
    await flushing
    expect(await outbox.list()).toEqual([])
  })

  test('a put that could not be kept is taken back', async () => {
    const outbox = open()
    const told = listen(outbox)
    disk.onWrite = () => {
      throw new Error('The disk is full')
    }
    await expect(outbox.put('a')).rejects.toThrow('The disk is full')
    expect(told).toEqual(['a saving', 'a dropped'])
    expect(await outbox.list()).toEqual([])
  })

  test('one that a person drops while it fails does not come back', async () => {
    const outbox: Outbox<string, { taken: string }> = open({
      send: async () => {
        const [item] = disk.items.values()
        await outbox.drop(item?.id ?? '')
        throw answered(503)
      },
    })
    const told = listen(outbox)
    await outbox.put('a')
    await outbox.flush()
    expect(told.at(-1)).toBe('a dropped')
    expect(await outbox.list()).toEqual([])
  })

  test('other tabs hear of it, without the answer', async () => {
    const callbacks = new Set<(change: unknown) => void>()
    const tabs = {
      tell: (change: unknown) => callbacks.forEach((callback) => void callback(structuredClone(change))),
      onTold: (callback: (change: unknown) => void) => {
        callbacks.add(callback)
        return () => void callbacks.delete(callback)
      },
      close: () => {},
    }
    const one = new Outbox({
      store: disk.store(),
      send: async () => () => 'cannot be cloned',
      lock: sharedLock(),
      network,
      world,
      tabs,
    })
    const told: unknown[] = []
    one.onChange(({ item }) => told.push(item.status))
    await one.put('a')
    await one.flush()
    // This one hears itself, too: each change twice.
    expect(told.filter((_, i) => i % 2 === 0)).toEqual(['saving', 'queued', 'saving', 'sent'])
    for (const nonsense of [null, 'text', {}, { item: 1, dropped: false }]) tabs.tell(nonsense)
    expect(told).toHaveLength(8)
  })
})

describe('a send that never ends', () => {
  test('is given up after two minutes, also when it does not look at its signal: others have their turn', async () => {
    const outbox = open({
      send: async (delivery, signal) => (delivery.body === 'a' ? new Promise(() => {}) : send(delivery, signal)),
    })
    network.asks = true
    for (const body of ['a', 'b']) await outbox.put(body, { key: body })
    const flushing = outbox.flush()
    await world.pass(240_000)
    await flushing
    expect(arrived).toEqual(['b b'])
    expect(await outbox.list()).toMatchObject([{ body: 'a', attempts: 1, error: 'No answer within 120 s' }])
    const again = outbox.flush()
    await world.pass(0)
    await outbox.close()
    await expect(again).rejects.toThrow('The outbox was closed')
    expect(world.pendingMs).toEqual([])
  })
})

describe('closing', () => {
  test('cuts off what is being sent; it counts for nothing and is sent again under its key', async () => {
    const outbox = open({
      send: ({ key }, signal) => {
        arrived.push(key)
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    await outbox.put('a', { key: 'a' })
    const flushing = outbox.flush()
    await vi.waitFor(() => expect(arrived).toEqual(['a']))
    await outbox.close()
    await expect(flushing).rejects.toThrow('The outbox was closed')
    await expect(outbox.put('b')).rejects.toThrow('The outbox was closed')
    const next = open()
    expect(brief(await next.list())).toEqual(['a queued 0'])
    await next.flush()
    expect(arrived).toEqual(['a', 'a a'])
  })
})

describe('a crash at any write', () => {
  /** Puts, fails, sends, drops; how far it came is what was acknowledged. */
  async function life(acknowledged: Set<string>, received: Set<string>): Promise<void> {
    const outbox = new Outbox<string>({
      store: disk.store(),
      send: async ({ key, body }) => {
        if (body === 'flaky' && !received.has('flaky tried')) {
          received.add('flaky tried')
          throw answered(503)
        }
        received.add(key)
      },
      lock: sharedLock(),
      network,
      world,
    })
    for (const body of ['a', 'flaky', 'b']) {
      await outbox.put(body, { key: body })
      acknowledged.add(body)
    }
    await outbox.flush()
    await outbox.flush()
  }

  test('loses nothing that was acknowledged, and makes nothing twice', async () => {
    await life(new Set(), new Set())
    const writes = disk.writes
    expect(writes).toBe(7)
    for (let n = 1; n <= writes; n++) {
      for (const when of ['before', 'after'] as const) {
        disk = new MemoryDisk()
        const [acknowledged, received] = [new Set<string>(), new Set<string>()]
        disk.onWrite = (then, i) => {
          if (then === when && i === n) throw new Error('crash')
        }
        await expect(life(acknowledged, received)).rejects.toThrow('crash')
        disk.onWrite = () => {}
        const kept = [...disk.items.keys()].length
        const next = open({ send: async ({ key }) => ({ taken: String(received.add(key)) }) })
        await next.flush()
        expect(await next.list()).toEqual([])
        for (const key of acknowledged) expect(received, `${when} write ${n}, ${kept} kept`).toContain(key)
      }
    }
  })
})
