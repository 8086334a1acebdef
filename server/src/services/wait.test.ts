import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../scripts/testing/fake-world.ts'
import { EmbeddedBus } from '../bus/embedded.ts'
import { freshRead, waitFor } from './wait.ts'

let world: FakeWorld
let bus: EmbeddedBus
let looks: number
let found: string | null
beforeEach(() => {
  world = new FakeWorld()
  bus = new EmbeddedBus()
  looks = 0
  found = null
})

async function look(): Promise<string | null> {
  looks++
  return found
}

function wait(timeoutMs: number, signal?: AbortSignal, looking: () => Promise<string | null> = look) {
  const state: { answer?: string | null; error?: unknown } = {}
  waitFor({ world, bus }, ['queue:a', 'queue:b'], timeoutMs, looking, signal).then(
    (answer) => {
      state.answer = answer
    },
    (error: unknown) => {
      state.error = error
    },
  )
  return state
}

test('a result that exists is found without waiting', async () => {
  found = 'it'
  const state = wait(5_000)
  await settled()
  expect(state.answer).toBe('it')
  expect(looks).toBe(1)
  expect(world.pendingMs).toEqual([])
})

test('a wake-up of any topic causes a look', async () => {
  const state = wait(5_000)
  await settled()
  bus.wake(['queue:other'])
  await settled()
  expect(looks).toBe(1)
  bus.wake(['queue:b'])
  await settled()
  expect(looks).toBe(2)
  found = 'it'
  bus.wake(['queue:a'])
  await settled()
  expect(state.answer).toBe('it')
})

test('a wake-up during a look is not missed', async () => {
  const first = Promise.withResolvers<null>()
  const state = wait(5_000, undefined, () => {
    looks++
    return looks === 1 ? first.promise : Promise.resolve('it')
  })
  bus.wake(['queue:a', 'queue:b'])
  first.resolve(null)
  await settled()
  expect(state.answer).toBe('it')
  expect(looks).toBe(2)
})

test('without a wake-up it looks every second', async () => {
  const state = wait(60_000)
  await world.pass(3_500)
  expect(looks).toBe(4)
  found = 'it'
  await world.pass(499)
  expect(state.answer).toBeUndefined()
  await world.pass(1)
  expect(state.answer).toBe('it')
})

test('it looks once more at the timeout, and then answers null', async () => {
  const state = wait(1_300)
  await world.pass(1_299)
  expect(state.answer).toBeUndefined()
  await world.pass(1)
  expect(state.answer).toBeNull()
  expect(looks).toBe(3)
})

test('with a timeout of 0 it looks once', async () => {
  const state = wait(0)
  await settled()
  expect(state.answer).toBeNull()
  expect(looks).toBe(1)
})

test('after an abort it looks no more', async () => {
  const controller = new AbortController()
  const state = wait(5_000, controller.signal)
  await settled()
  found = 'for nobody'
  controller.abort()
  await settled()
  expect(state.answer).toBeNull()
  expect(looks).toBe(1)
  expect(world.pendingMs).toEqual([])
})

test('aborted from the beginning, it still looks once', async () => {
  const state = wait(5_000, AbortSignal.abort())
  await settled()
  expect(state.answer).toBeNull()
  expect(looks).toBe(1)
  found = 'it'
  const next = wait(5_000, AbortSignal.abort())
  await settled()
  expect(next.answer).toBe('it')
})

test('a result that was found before the abort is returned', async () => {
  const controller = new AbortController()
  const looking = Promise.withResolvers<string>()
  const state = wait(5_000, controller.signal, () => looking.promise)
  controller.abort()
  looking.resolve('it')
  await settled()
  expect(state.answer).toBe('it')
})

test('it always ends its subscriptions', async () => {
  const subscribed = () => {
    let count = 0
    const subscribe = bus.subscribe.bind(bus)
    bus.subscribe = (topic, callback) => {
      count++
      const end = subscribe(topic, callback)
      return () => {
        count--
        end()
      }
    }
    return () => count
  }
  const count = subscribed()
  const failing = wait(5_000, undefined, () => Promise.reject(new Error('gone')))
  wait(1_000)
  expect(count()).toBe(4)
  await world.pass(1_000)
  expect(failing.error).toEqual(new Error('gone'))
  expect(count()).toBe(0)
})

/** Each read looks when it begins, and answers when the test tells it to. */
function slow() {
  let value = 0
  const answers: (() => void)[] = []
  const ask = freshRead(() => {
    const seen = value
    return new Promise<number>((resolve, reject) => {
      answers.push(() => (seen < 0 ? reject(new Error('away')) : resolve(seen)))
    })
  })
  return { ask, answers, set: (next: number) => (value = next) }
}

const turn = () => new Promise((resolve) => setImmediate(resolve))

test('calls during a read share the next one', async () => {
  const { ask, answers, set } = slow()
  const first = [ask(), ask()]
  await turn()
  set(1)
  const second = [ask(), ask()]
  await turn()
  expect(answers.length).toBe(1)
  answers[0]?.()
  expect(await Promise.all(first)).toEqual([0, 0])
  await turn()
  expect(answers.length).toBe(2)
  answers[1]?.()
  expect(await Promise.all(second)).toEqual([1, 1])
})

test('a failed read does not block the next one', async () => {
  const { ask, answers, set } = slow()
  set(-1)
  const failing = expect(ask()).rejects.toThrow('away')
  await turn()
  set(2)
  const next = ask()
  answers[0]?.()
  await failing
  await turn()
  answers[1]?.()
  expect(await next).toBe(2)
})
