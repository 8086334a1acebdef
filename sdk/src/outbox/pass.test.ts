import { beforeEach, describe, expect, test } from 'vitest'
import { ForeignAnswer, NoAnswer, Transient } from '../client/errors.ts'
import { answered, brief, Scene } from './testing/given.ts'

let scene: Scene
beforeEach(() => {
  scene = new Scene()
})

describe('attempts', () => {
  test('being offline does not count as an attempt', async () => {
    const outbox = await scene.withItems('a', 'b')
    scene.network.set(false)
    for (let i = 0; i < 5; i++) await outbox.flush()
    expect(scene.arrived).toEqual([])
    scene.network.set(true)
    const silences = [
      new NoAnswer('reset', { cause: new Error('ECONNRESET') }),
      ...['Failed to fetch', 'NetworkError when attempting to fetch resource.', 'Load failed (example.com)'].map(
        (message) => new TypeError(message),
      ),
      await fetch('http://127.0.0.1:2').catch((error: unknown) => error),
      new DOMException('late', 'TimeoutError'),
    ]
    for (const error of [...silences, new Transient(new NoAnswer('late'), 'a'), new ForeignAnswer(200, '<html>', {})]) {
      scene.troubles = new Map([
        ['a', error],
        ['b', error],
      ])
      await outbox.flush()
    }
    expect(brief(await outbox.list())).toEqual(['a queued 0', 'b queued 0'])
    scene.troubles.clear()
    await outbox.flush()
    expect(scene.arrived.slice(-2)).toEqual(['a a', 'b b'])
    expect(scene.arrived.filter((line) => line === 'b b').length).toBeLessThan(
      scene.arrived.filter((line) => line === 'a a').length,
    )
    expect(await outbox.list()).toEqual([])
  })

  test('a browser that goes offline during a flush does not try the rest', async () => {
    const outbox = scene.open({
      send: async (delivery) => {
        scene.arrived.push(delivery.key)
        scene.network.isOnline = false
        throw new NoAnswer('gone')
      },
    })
    await outbox.put('a', { key: 'a' })
    await outbox.put('b', { key: 'b' })
    await outbox.flush()
    expect(scene.arrived).toEqual(['a'])
    expect(brief(await outbox.list())).toEqual(['a queued 0', 'b queued 0'])
  })

  test('error answers count, and after the third the item is failed', async () => {
    const outbox = await scene.withItems('a')
    scene.troubles.set('a', answered(503))
    for (let i = 0; i < 5; i++) await outbox.flush()
    expect(scene.arrived).toHaveLength(3)
    expect(await outbox.list()).toMatchObject([{ body: 'a', status: 'failed', attempts: 3, error: 'answered 503' }])
  })

  test.each([1, 5])('the item fails after %i attempts', async (attemptsMax) => {
    const outbox = scene.open({ attemptsMax })
    await outbox.put('a')
    scene.troubles.set('a', answered(500))
    for (let i = 0; i < 7; i++) await outbox.flush()
    expect(scene.arrived).toHaveLength(attemptsMax)
  })

  test.each([0, -1, 1.5, Number.NaN])('attemptsMax %d is refused', (attemptsMax) => {
    expect(() => scene.open({ attemptsMax })).toThrow('attemptsMax must be a whole number from 1, not')
  })

  test('an error that the client does not retry fails the item at once', async () => {
    const outbox = await scene.withItems('bad', 'quota', 'good')
    scene.troubles.set('bad', answered(400)).set('quota', answered(409, { code: 'QUOTA_EXCEEDED' }))
    await outbox.flush()
    expect(brief(await outbox.list())).toEqual(['bad failed 1', 'quota failed 1'])
    expect(scene.arrived).toEqual(['bad bad', 'quota quota', 'good good'])
  })

  test.each([
    new TypeError("Cannot read properties of undefined (reading 'id')"),
    new TypeError('Failed to parse URL from nowhere', { cause: new Error('Invalid URL') }),
  ])('a mistake in send is not treated as an outage: %s', async (mistake) => {
    const outbox = await scene.withItems('a')
    scene.troubles.set('a', mistake)
    await outbox.flush()
    expect(await outbox.list()).toMatchObject([{ status: 'failed', attempts: 1, error: mistake.message }])
  })

  test('retry() gives an item new attempts in its old order', async () => {
    const outbox = await scene.withItems('a', 'b')
    scene.troubles.set('a', answered(400)).set('b', answered(503))
    await outbox.flush()
    const [a] = await outbox.list()
    const revived = await outbox.retry(a?.id ?? '')
    expect(revived).toMatchObject({ status: 'queued', attempts: 0 })
    expect(revived).not.toHaveProperty('error')
    scene.troubles.clear()
    scene.arrived = []
    await outbox.flush()
    expect(scene.arrived).toEqual(['a a', 'b b'])
  })

  test('drop() removes the item', async () => {
    const outbox = await scene.withItems('a', 'b')
    const [a] = await outbox.list()
    await outbox.drop(a?.id ?? '')
    await outbox.flush()
    expect(scene.arrived).toEqual(['b b'])
    for (const act of [outbox.drop(a?.id ?? ''), outbox.retry('never-there')]) {
      await expect(act).rejects.toThrow('There is no item')
    }
  })

  test('the next attempt waits for Retry-After, and survives a clock that is set back', async () => {
    const outbox = await scene.withItems('a', 'b')
    scene.troubles.set('a', answered(503)).set('b', answered(429, { retryAfterMs: 120_000 }))
    await outbox.flush({ onlyDue: true })
    scene.arrived = []
    const tried = async (passMs: number) => {
      await scene.world.pass(passMs)
      await outbox.flush({ onlyDue: true })
      return scene.arrived.splice(0)
    }
    expect(await tried(14_000)).toEqual([])
    expect(await tried(4_000)).toEqual(['a a'])
    expect(await tried(90_000)).toEqual(['a a'])
    expect(await tried(30_000)).toEqual(['b b'])
    scene.world.jump(-30 * 86_400_000)
    expect(await tried(0)).toEqual(['b b'])
  })
})

describe('a failing item does not block the others', () => {
  test.each([
    ['is refused', answered(400)],
    ['meets an error of the server', answered(500)],
    ['is a fault of the program', new Error('bug')],
  ])('an item that %s', async (_, error) => {
    const outbox = await scene.withItems('a', 'poison', 'b')
    scene.troubles.set('poison', error)
    for (let i = 0; i < 4; i++) await outbox.flush()
    expect(scene.arrived.filter((line) => !line.startsWith('poison'))).toEqual(['a a', 'b b'])
    expect(await outbox.list()).toMatchObject([{ body: 'poison', status: 'failed' }])
  })

  test('an item without an answer fails if others are answered', async () => {
    const outbox = await scene.withItems('poison', 'a')
    scene.troubles.set('poison', new NoAnswer('reset'))
    await outbox.flush()
    expect(scene.arrived).toEqual(['poison poison'])
    for (const more of ['b', 'c', 'd']) {
      await outbox.put(more, { key: more })
      await outbox.flush()
    }
    expect(await outbox.list()).toMatchObject([{ body: 'poison', status: 'failed', attempts: 3, error: 'reset' }])
    expect(scene.arrived.filter((line) => !line.startsWith('poison'))).toEqual(['a a', 'b b', 'c c', 'd d'])
  })

  test('it fails at once if the network can ask the server', async () => {
    scene.network.asks = true
    const outbox = await scene.withItems('poison', 'worse', 'a')
    scene.troubles.set('poison', new NoAnswer('reset')).set('worse', new NoAnswer('reset'))
    await outbox.flush()
    expect(scene.arrived.at(-1)).toBe('a a')
    expect(brief(await outbox.list())).toEqual(['poison queued 1', 'worse queued 1'])
  })

  test('this holds for several such items', async () => {
    const poisons = ['p1', 'p2', 'p3']
    const outbox = await scene.withItems(...poisons, 'a', 'b')
    for (const poison of poisons) scene.troubles.set(poison, new NoAnswer('reset'))
    for (let i = 0; i < 6; i++) await outbox.flush()
    expect(scene.arrived.filter((line) => !line.startsWith('p'))).toEqual(['a a', 'b b'])
    expect(await outbox.list()).toHaveLength(3)
  })

  test('tries during a flapping network do not count', async () => {
    const outbox = await scene.withItems('a', 'b', 'c', 'd')
    scene.troubles.set('b', new NoAnswer('reset'))
    await outbox.flush()
    expect(brief(await outbox.list())).toEqual(['b queued 0', 'c queued 0', 'd queued 0'])
    // It is back when the next one is tried in the place of this one: it has its turn before all others.
    scene.troubles.clear()
    let tries = 0
    const returning = scene.open({
      send: async (delivery, signal) => {
        if (delivery.body === 'b' && ++tries < 3) throw new NoAnswer('reset')
        return scene.send(delivery, signal)
      },
    })
    scene.arrived = []
    await returning.flush()
    await returning.flush()
    expect(scene.arrived).toEqual(['c c', 'b b', 'd d'])
    expect(await outbox.list()).toEqual([])
  })

  test('an error answer that `send` returns is not a delivery', async () => {
    const outbox = scene.openAny({
      send: async ({ body }) =>
        Response.json(
          { error: { code: 'UNAVAILABLE', message: 'The store is out of reach' } },
          { status: Number(body), headers: { 'retry-after': '100' } },
        ),
    })
    for (const body of [503, 422, 201]) await outbox.put(body)
    await outbox.flush()
    expect(await outbox.list()).toMatchObject([
      { body: 503, status: 'queued', error: 'The store is out of reach' },
      { body: 422, status: 'failed' },
    ])
    expect([...scene.disk.items.values()][0]?.dueAtMs).toBeGreaterThanOrEqual(scene.world.now() + 100_000)
  })
})

describe('a send that never ends', () => {
  test('is aborted after two minutes, even if it ignores its signal', async () => {
    const outbox = scene.open({
      send: async (delivery, signal) => (delivery.body === 'a' ? new Promise(() => {}) : scene.send(delivery, signal)),
    })
    scene.network.asks = true
    for (const body of ['a', 'b']) await outbox.put(body, { key: body })
    const flushing = outbox.flush()
    await scene.world.pass(240_000)
    await flushing
    expect(scene.arrived).toEqual(['b b'])
    expect(await outbox.list()).toMatchObject([{ body: 'a', attempts: 1, error: 'No answer within 120 s' }])
    const again = outbox.flush()
    await scene.world.pass(0)
    await outbox.close()
    await expect(again).rejects.toThrow('The outbox was closed')
    expect(scene.world.pendingMs).toEqual([])
  })
})
