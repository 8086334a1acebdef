import { expect, test } from 'vitest'
import { FakeWorld } from '../../../scripts/testing/fake-world.ts'
import { Client } from './client.ts'
import { Transient } from './errors.ts'
import { httpTransport } from './http.ts'

const PART_BYTES = 4 * 1024 * 1024

/** A client of a server that answers only when, and what, a test says, with one try for each call. */
function scene() {
  const world = new FakeWorld()
  const sent: { bytes: number; answer: (response: Response) => void; open: boolean }[] = []
  const send: typeof fetch = (_, { body, signal } = {}) => {
    const { promise, resolve, reject } = Promise.withResolvers<Response>()
    const one = { bytes: body instanceof Blob ? body.size : 0, answer: resolve, open: true }
    signal?.addEventListener('abort', () => {
      one.open = false
      reject(signal.reason)
    })
    sent.push(one)
    return promise
  }
  const client = new Client(httpTransport({ url: 'http://nobody.test', fetch: send, world, retry: { tries: 1 } }))
  return { world, sent, client }
}

/** That a call ends, typed, when its last try has taken so long, and not a moment before. */
async function expectToTake(seconds: number, { world, sent }: ReturnType<typeof scene>, call: Promise<unknown>) {
  let thrown: unknown
  call.catch((error: unknown) => {
    thrown = error
  })
  await world.pass(seconds * 1_000 - 1)
  expect(thrown).toBeUndefined()
  expect(sent.at(-1)).toMatchObject({ open: true })
  await world.pass(1)
  expect(sent.at(-1)).toMatchObject({ open: false })
  expect(thrown).toBeInstanceOf(Transient)
  expect(thrown).toMatchObject({
    code: 'UNAVAILABLE',
    message: `No answer within ${seconds} s`,
    cause: { name: 'NoAnswer' },
  })
  expect(world.pendingMs).toEqual([])
}

test('each part of an upload may take 300 s', async () => {
  const given = scene()
  const { world, sent, client } = given
  const upload = client.artifacts.upload(new Uint8Array(PART_BYTES + 7), { name: 'slow' })
  await world.pass(299_999)
  expect(sent).toMatchObject([{ bytes: PART_BYTES, open: true }])
  sent[0]?.answer(new Response('{}', { status: 202 }))
  await expect.poll(() => sent.length).toBe(2)
  await expectToTake(300, given, upload)
  expect(sent).toMatchObject([{ bytes: PART_BYTES }, { bytes: 7 }])
})

test('any other call may take 120 s', async () => {
  const given = scene()
  await expectToTake(120, given, given.client.list())
  expect(given.sent).toHaveLength(1)
})
