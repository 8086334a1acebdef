import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { Readable } from 'node:stream'
import { buffer, text } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { BodyBudget, JsonGauge } from './body-limits.ts'

const KIB = 1024
const MIB = 1024 * KIB
const PAYLOAD = MIB + 128 * KIB
const RESULT = 4 * MIB + 128 * KIB
const BATCH = 16 * MIB
const UUID = '01900000-0000-7000-8000-000000000000'

/** The limits of docs/api.md. Every other route has the smallest limit. */
const LARGE: Readonly<Record<string, number>> = {
  'post /v1/jobs': PAYLOAD,
  'post /v1/jobs/{job_id}/retry': PAYLOAD,
  'post /v1/definitions': PAYLOAD,
  'put /v1/definitions/{name}': PAYLOAD,
  'post /calc/zpe/jobs': PAYLOAD,
  'post /api/cloud/jobs/submit': PAYLOAD,
  'post /v1/leases/{lease_id}/result': RESULT,
  'post /v1/leases/{lease_id}/failed': RESULT,
  'post /calc/zpe/compute/jobs/{job_id}/result': RESULT,
  'post /calc/zpe/compute/jobs/{job_id}/failed': RESULT,
  'post /v1/jobs/batch': BATCH,
  'post /v1/leases/report': BATCH,
  'post /v1/leases/{lease_id}/logs': BATCH,
  'post /v1/leases/{lease_id}/events': BATCH,
  'post /v1/triggers': BATCH,
  'post /v1/hooks/{name}': 256 * KIB,
  'post /v1/session': 64 * KIB,
  'post /v1/workers/register': 64 * KIB,
  'post /calc/zpe/compute/servers/register': 64 * KIB,
}
const OTHERS = 128 * KIB

let http: TestApp
let worker: WorkerCalls
beforeAll(async () => {
  http = await testApp('sqlite')
  worker = await registeredWorker(http)
  await http.app.listen({ host: '127.0.0.1', port: 0 })
})
afterAll(() => http.close())

interface Document {
  paths: Record<string, Record<string, { requestBody?: { content: object } }>>
}

/** `method path` of all routes that take JSON. */
async function operations(): Promise<string[]> {
  const { body } = await http.call('GET', '/openapi.json')
  return Object.entries((body as Document).paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, { requestBody }]) =>
      requestBody !== undefined && 'application/json' in requestBody.content ? [`${method} ${path}`] : [],
    ),
  )
}

/** Sends a head with this Content-Length, and reads the answer. */
async function promise(operation: string, bytes: number, token?: string): Promise<string> {
  const [method = '', template = ''] = operation.split(' ')
  const path = template
    .replace('{lease_id}', `${UUID}.a`)
    .replace('{name}', 'a')
    .replaceAll(/\{\w+\}/g, UUID)
  const socket = connect((http.app.server.address() as AddressInfo).port, '127.0.0.1')
  const headers = ['Host: localhost', 'Content-Type: application/json', `Content-Length: ${bytes}`]
  if (token !== undefined) headers.push(`Authorization: Bearer ${token}`)
  socket.write(`${method.toUpperCase()} ${path} HTTP/1.1\r\n${headers.join('\r\n')}\r\n\r\n`)
  const [answer] = (await once(socket.setEncoding('utf8'), 'data')) as [string]
  socket.destroy()
  const isForWorkers = token === undefined && answer.startsWith('HTTP/1.1 401')
  return isForWorkers ? promise(operation, bytes, worker.token) : answer
}

describe('the length of a body', () => {
  test('over the limit of its route is 413 with the limit, before it is sent', async () => {
    const all = await operations()
    expect(all).toEqual(expect.arrayContaining(Object.keys(LARGE)))
    expect(all.length).toBeGreaterThan(Object.keys(LARGE).length + 10)
    for (const operation of all) {
      const bytes = LARGE[operation] ?? OTHERS
      const answer = await promise(operation, bytes + 1)
      expect([operation, answer.split(' ')[1]]).toEqual([operation, '413'])
      expect(answer).toContain(`The request body is larger than ${bytes} bytes`)
    }
  })

  test.each([
    ['/v1/jobs', PAYLOAD],
    ['/v1/jobs/batch', BATCH],
  ])('%s reads a body of its limit', async (path, bytes) => {
    const { status, text } = await http.call('POST', path, { body: JSON.stringify('x'.repeat(bytes - 2)) })
    expect([status, text]).toEqual([400, expect.stringContaining('must be a JSON object')])
  })
})

const names = (count: number) => Array.from({ length: count }, (_, i) => `"${i.toString(36)}":1`).join(',')

describe('the parts of a body', () => {
  test('50,000 names, arrays and objects are read, and one more is 413', async () => {
    const job = (count: number) => ({ body: `{"kind":"k","payload":{${names(count)}}}` })
    // The body, kind, payload and the payload's object are four of them.
    expect((await http.call('POST', '/v1/jobs', job(49_996))).status).toBe(201)
    const { status, text } = await http.call('POST', '/v1/jobs', job(49_997))
    expect([status, text]).toEqual([413, expect.stringContaining('more than 50000 names, arrays and objects')])
  })

  test('a batch may have 100,000 of them', async () => {
    const batch = (count: number) => ({ body: `{"jobs":[{"kind":"k","payload":{${names(count)}}}]}` })
    expect((await http.call('POST', '/v1/jobs/batch', batch(99_993))).status).toBe(200)
    const { status, text } = await http.call('POST', '/v1/jobs/batch', batch(99_994))
    expect([status, text]).toEqual([413, expect.stringContaining('more than 100000 names, arrays and objects')])
  })

  test('the rest of a body with too many parts is not awaited', async () => {
    const { port } = http.app.server.address() as AddressInfo
    const socket = connect(port, '127.0.0.1')
    const head = 'POST /v1/jobs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
    socket.write(`${head}Content-Length: ${BATCH}\r\n\r\n{"jobs":[{"kind":"k","payload":{${names(100_000)},`)
    const [answer] = (await once(socket.setEncoding('utf8'), 'data')) as [string]
    expect(answer).toMatch(/^HTTP\/1\.1 413 /)
    socket.destroy()
  })
})

const LARGE_JOBS = JSON.stringify({ jobs: [{ kind: 'k', payload: 'x'.repeat(100_000) }] })

/** A batch with a body of this many bytes, which are not sent yet. */
function begin(token: string | undefined, bytes: number) {
  const socket = connect((http.app.server.address() as AddressInfo).port, '127.0.0.1')
  const head = `POST /v1/jobs/batch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n`
  socket.write(`${head}Content-Type: application/json\r\nConnection: close\r\nContent-Length: ${bytes}\r\n\r\n`)
  return socket
}

test('slow bodies delay only their own sender', async () => {
  const tokens = await Promise.all(['ann', 'ben'].map((user) => http.token(user, 'submitter')))
  const jobs = LARGE_JOBS
  const slow = begin(tokens[0], BATCH)
  await once(http.app.server, 'request')
  const waiting = begin(tokens[0], jobs.length)
  const answer = text(waiting)
  waiting.write(jobs)
  const other = begin(tokens[1], jobs.length)
  other.write(jobs)
  expect(await text(other)).toMatch(/^HTTP\/1\.1 200 /)
  expect(waiting.bytesRead).toBe(0)
  slow.destroy()
  expect(await answer).toMatch(/^HTTP\/1\.1 200 /)
})

test('a sender that disconnects during authentication takes no room', async () => {
  const token = await http.token('eve', 'submitter')
  const { access } = http.services
  const { authenticate } = access
  const lookedUp = Promise.withResolvers<void>()
  access.authenticate = (sent) => lookedUp.promise.then(() => authenticate(sent))
  try {
    const gone = begin(token, BATCH)
    const [, response] = (await once(http.app.server, 'request')) as [unknown, ServerResponse]
    gone.destroy()
    await once(response, 'close')
  } finally {
    access.authenticate = authenticate
    lookedUp.resolve()
  }
  const next = begin(token, LARGE_JOBS.length)
  next.write(LARGE_JOBS)
  expect(await text(next)).toMatch(/^HTTP\/1\.1 200 /)
})

test('a sender waits for its own room, and does not delay others', () => {
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

test('all senders share a maximum, and a canceled wait gets no room', () => {
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

test('a sender without a pause gets room twice a second', async () => {
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

/** Split into pieces of this size, so that strings and escapes are cut anywhere. */
async function through(text: string, pieceBytes: number): Promise<string> {
  const bytes = Buffer.from(text)
  const pieces = Array.from({ length: Math.ceil(bytes.length / pieceBytes) }, (_, i) =>
    bytes.subarray(i * pieceBytes, (i + 1) * pieceBytes),
  )
  const gauge = new JsonGauge({ membersMax: 4, elementsMax: 3 })
  const [read] = await Promise.all([buffer(gauge), pipeline(Readable.from(pieces), gauge)])
  return read.toString()
}

const FITS = [
  '{"a":1,"b":[]}',
  '[1,2,3,4]',
  // The content of strings does not count, even after an escaped quote or backslash.
  JSON.stringify('{[:,"\\{[:,{[:,{[:,'),
  JSON.stringify(['\\', ',,,,', '"::::']),
]

test.each(FITS)('%s passes unchanged, however it is split', async (text) => {
  for (const bytes of [1, 2, 3, 5, 100]) expect(await through(text, bytes)).toBe(text)
})

test.each([
  ['{"a":1,"b":{"c":[{}]}}', 'The request body has more than 4 names, arrays and objects'],
  ['{"a":0,"b":0,"c":0,"d":0}', 'The request body has more than 4 names, arrays and objects'],
  ['[1,2,3,4,5]', 'The request body has more than 3 elements'],
])('%s is too much, however it is split', async (text, words) => {
  for (const bytes of [1, 2, 3, 100]) await expect(through(text, bytes)).rejects.toThrow(words)
})

test('deep nesting is refused before it is parsed', async () => {
  await expect(through('['.repeat(100), 100)).rejects.toMatchObject({
    code: 'INVALID_PAYLOAD',
    message: 'The body is nested more than 64 levels deep',
  })
})
