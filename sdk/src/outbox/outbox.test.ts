import { beforeEach, describe, expect, test, vi } from 'vitest'
import type { OutboxChange } from './item.ts'
import type { Outbox } from './outbox.ts'
import { answered, brief, Scene } from './testing/given.ts'

let scene: Scene
beforeEach(() => {
  scene = new Scene()
})

describe('delivery', () => {
  test('is in the order of put, each item with its own key, and removes the items', async () => {
    const outbox = await scene.withItems('a', 'b', 'c')
    expect(brief(await outbox.list())).toEqual(['a queued 0', 'b queued 0', 'c queued 0'])
    expect(scene.arrived).toEqual([])
    const flushed = await outbox.flush()
    expect(scene.arrived).toEqual(['a a', 'b b', 'c c'])
    expect(flushed.map(({ status, answer }) => [status, answer])).toEqual([
      ['sent', { taken: 'a' }],
      ['sent', { taken: 'b' }],
      ['sent', { taken: 'c' }],
    ])
    expect(await outbox.list()).toEqual([])
  })

  test('includes items that are put during the flush', async () => {
    const outbox: Outbox<string, { taken: string }> = scene.open({
      send: async (delivery, signal) => {
        if (delivery.body === 'a') await outbox.put('later', { key: 'later' })
        return scene.send(delivery, signal)
      },
    })
    await outbox.put('a', { key: 'a' })
    await outbox.flush()
    expect(scene.arrived).toEqual(['a a', 'later later'])
  })

  test('generates a key that all attempts share', async () => {
    const outbox = scene.open()
    const [a, b] = [await outbox.put('x'), await outbox.put('x')]
    expect(a.key).toMatch(/^outbox-[0-9a-f-]{36}$/)
    expect(b.key).not.toBe(a.key)
    scene.troubles.set('x', answered(503))
    await outbox.flush()
    await outbox.flush()
    expect(scene.arrived).toEqual([`${a.key} x`, `${b.key} x`, `${a.key} x`, `${b.key} x`])
  })

  test('a second put with a key returns the first item, or refuses another body', async () => {
    const outbox = await scene.withItems('a')
    const [kept] = await outbox.list()
    expect((await outbox.put('a', { key: 'a' })).id).toBe(kept?.id)
    await expect(outbox.put('other', { key: 'a' })).rejects.toThrow('The key a is already in the outbox')
    expect(brief(await outbox.list())).toEqual(['a queued 0'])
  })

  test('later changes to the object have no effect', async () => {
    const sent: unknown[] = []
    const outbox = scene.openAny<{ list: number[] }, unknown>({ send: async ({ body }) => sent.push(body) })
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
  ])('the key %j is refused, and nothing is stored', async (key, message) => {
    await expect(scene.open().put('a', { key })).rejects.toThrow(message)
    expect(scene.disk.items.size).toBe(0)
  })

  test.each([
    ['undefined', undefined, /^body must be JSON, not undefined/],
    ['a function', () => 1, /^body must be JSON, not function/],
    ['a BigInt', { n: 1n }, /^body must be JSON: .*BigInt/],
  ])('a body that is %s is refused, and nothing is stored', async (_, body, message) => {
    await expect(scene.openAny({ send: async () => {} }).put(body)).rejects.toThrow(message)
    expect(scene.disk.items.size).toBe(0)
  })
})

describe('notifications', () => {
  function listen(outbox: Outbox<string, { taken: string }>): string[] {
    const told: string[] = []
    outbox.onChange(({ item, dropped }: OutboxChange<string>) => {
      told.push(`${item.body} ${dropped ? 'dropped' : item.status}`)
    })
    return told
  }

  test('report each change of each item', async () => {
    const outbox = scene.open()
    const told = listen(outbox)
    const { id } = await outbox.put('a', { key: 'a' })
    expect(told.splice(0)).toEqual(['a saving', 'a queued'])
    scene.troubles.set('a', answered(400))
    await outbox.flush()
    expect(told.splice(0)).toEqual(['a saving', 'a failed'])
    await outbox.retry(id)
    scene.troubles.clear()
    await outbox.flush()
    expect(told.splice(0)).toEqual(['a queued', 'a saving', 'a sent'])
    const { id: other } = await outbox.put('b')
    await outbox.drop(other)
    expect(told).toEqual(['b saving', 'b queued', 'b dropped'])
  })

  test('an item is listed as saving while it is stored or sent', async () => {
    const gate = Promise.withResolvers<void>()
    const outbox = scene.open({ send: (delivery, signal) => gate.promise.then(() => scene.send(delivery, signal)) })
    const putting = outbox.put('a')
    expect(brief(await outbox.list())).toEqual(['a saving 0'])
    await putting
    const flushing = outbox.flush()
    await vi.waitFor(async () => expect(brief(await outbox.list())).toEqual(['a saving 0']))
    gate.resolve()
    await flushing
    expect(await outbox.list()).toEqual([])
  })

  test('a put that could not be stored is reported as dropped', async () => {
    const outbox = scene.open()
    const told = listen(outbox)
    scene.disk.onWrite = () => {
      throw new Error('The scene.disk is full')
    }
    await expect(outbox.put('a')).rejects.toThrow('The scene.disk is full')
    expect(told).toEqual(['a saving', 'a dropped'])
    expect(await outbox.list()).toEqual([])
  })

  test('an error of a listener is uncaught, and the item is still sent', async () => {
    const outbox = scene.open()
    outbox.onChange(() => {
      throw new Error('fault of the page')
    })
    const thrown: (() => void)[] = []
    const spy = vi.spyOn(globalThis, 'queueMicrotask').mockImplementation((callback) => thrown.push(callback))
    try {
      await outbox.put('a', { key: 'a' })
      await outbox.flush()
    } finally {
      spy.mockRestore()
    }
    expect(scene.arrived).toEqual(['a a'])
    expect(thrown[0]).toThrow('fault of the page')
  })

  test('an item that is dropped while it fails does not return', async () => {
    const outbox: Outbox<string, { taken: string }> = scene.open({
      send: async () => {
        const [item] = scene.disk.items.values()
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

  test('other tabs are notified, without the answer', async () => {
    const callbacks = new Set<(change: unknown) => void>()
    const tabs = {
      tell: (change: unknown) => callbacks.forEach((callback) => void callback(structuredClone(change))),
      onTold: (callback: (change: unknown) => void) => {
        callbacks.add(callback)
        return () => void callbacks.delete(callback)
      },
      close: () => {},
    }
    const one = scene.openAny({ send: async () => () => 'cannot be cloned', tabs })
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

describe('closing', () => {
  test('aborts the item being sent; it does not count, and is sent again with its key', async () => {
    const outbox = scene.open({
      send: ({ key }, signal) => {
        scene.arrived.push(key)
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    await outbox.put('a', { key: 'a' })
    const flushing = outbox.flush()
    await vi.waitFor(() => expect(scene.arrived).toEqual(['a']))
    await outbox.close()
    await expect(flushing).rejects.toThrow('The outbox was closed')
    await expect(outbox.put('b')).rejects.toThrow('The outbox was closed')
    const next = scene.open()
    expect(brief(await next.list())).toEqual(['a queued 0'])
    await next.flush()
    expect(scene.arrived).toEqual(['a', 'a a'])
  })
})

describe('a crash at any write', () => {
  /** Puts, fails, sends, drops; how far it came is what was acknowledged. */
  async function life(acknowledged: Set<string>, received: Set<string>): Promise<void> {
    const outbox = scene.openAny<string, unknown>({
      send: async ({ key, body }) => {
        if (body === 'flaky' && !received.has('flaky tried')) {
          received.add('flaky tried')
          throw answered(503)
        }
        received.add(key)
      },
    })
    for (const body of ['a', 'flaky', 'b']) {
      await outbox.put(body, { key: body })
      acknowledged.add(body)
    }
    await outbox.flush()
    await outbox.flush()
  }

  test('loses no acknowledged item, and delivers none twice', async () => {
    await life(new Set(), new Set())
    const writes = scene.disk.writes
    expect(writes).toBe(7)
    for (let n = 1; n <= writes; n++) {
      for (const when of ['before', 'after'] as const) {
        scene = new Scene()
        const [acknowledged, received] = [new Set<string>(), new Set<string>()]
        scene.disk.onWrite = (then, i) => {
          if (then === when && i === n) throw new Error('crash')
        }
        await expect(life(acknowledged, received)).rejects.toThrow('crash')
        scene.disk.onWrite = () => {}
        const kept = [...scene.disk.items.keys()].length
        const next = scene.open({ send: async ({ key }) => ({ taken: String(received.add(key)) }) })
        await next.flush()
        expect(await next.list()).toEqual([])
        for (const key of acknowledged) expect(received, `${when} write ${n}, ${kept} kept`).toContain(key)
      }
    }
  })
})
