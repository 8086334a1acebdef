import { afterEach, beforeEach, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'

let http: TestApp
let nowMs: number
/** Each read of the list of jobs waits for this. */
let gate: Promise<unknown>
let readings: number

beforeEach(async () => {
  nowMs = 0
  gate = Promise.resolve()
  readings = 0
  http = await testApp('sqlite', {
    deps: { world: { ...realWorld, monotonic: () => nowMs } },
    alter: (services) => ({
      ...services,
      jobs: {
        ...services.jobs,
        async list(...asked) {
          readings++
          await gate
          return services.jobs.list(...asked)
        },
      },
    }),
  })
})
afterEach(() => http.close())

const AGED = { headers: { 'cache-control': 'max-age=1' } }
const list = (call: Call = AGED, query = '') => http.call('GET', `/v1/jobs${query}`, call)

async function submit(userId = 'local'): Promise<void> {
  await http.services.submission.submit({ ...LOCAL_ADMIN, userId }, { kind: 'work' }, { key: null })
}

const count = async (call: Call = AGED, query = '') =>
  ((await list(call, query)).body as { data: unknown[] }).data.length

test('callers that accept an answer of one second share it for one second', async () => {
  expect(await count()).toBe(0)
  await submit()
  nowMs = 999
  expect(await count()).toBe(0)
  expect(readings).toBe(1)
  nowMs = 1_000
  expect(await count()).toBe(1)
  expect(readings).toBe(2)
})

test('the age counts from the begin of the read, not from its end', async () => {
  const { promise, resolve } = Promise.withResolvers<void>()
  gate = promise
  const slow = list()
  await expect.poll(() => readings).toBe(1)
  nowMs = 1_000
  resolve()
  await slow
  await list()
  expect(readings).toBe(2)
})

test('callers at the same time share one read, with equal answers', async () => {
  await submit()
  const { promise, resolve } = Promise.withResolvers<void>()
  gate = promise
  const both = [list(), list()]
  await expect.poll(() => readings).toBe(1)
  resolve()
  const [first, second] = await Promise.all(both)
  expect(second?.text).toBe(first?.text)
  expect(second?.headers['content-type']).toBe(first?.headers['content-type'])
  expect(readings).toBe(1)
})

test.each([{}, { 'cache-control': 'no-cache' }, { 'cache-control': 'max-age=0' }, { 'cache-control': 's-max-age=9' }])(
  'a caller with the headers %o always gets a new answer',
  async (headers) => {
    await list()
    await submit()
    expect(await count({ headers })).toBe(1)
  },
)

test('no answer is shared for more than five seconds', async () => {
  const hour = { headers: { 'cache-control': 'max-age=3600' } }
  await list(hour)
  nowMs = 4_999
  await list(hour)
  expect(readings).toBe(1)
  nowMs = 5_000
  await list(hour)
  expect(readings).toBe(2)
})

test('another query is another answer', async () => {
  await submit()
  expect([await count(), await count(AGED, '?kind=other'), await count()]).toEqual([1, 0, 1])
  expect(readings).toBe(2)
})

test('no answer passes from one user, role or token to another', async () => {
  const [ann, bob] = [await http.token('ann', 'submitter'), await http.token('bob', 'submitter')]
  const [viewer, also] = [await http.token('ann', 'viewer'), await http.token('ann', 'submitter')]
  await submit('ann')
  const seen = async (token: string) => count({ ...AGED, token })
  expect([await seen(ann), await seen(bob), await seen(viewer)]).toEqual([1, 0, 1])
  expect(readings).toBe(3)
  // The same rights.
  expect(await seen(also)).toBe(1)
  expect(readings).toBe(3)
  expect((await list(AGED)).status).toBe(401)
})

test('a refusal is not shared', async () => {
  const missing = '/v1/jobs/01990f3a-7c1e-7000-8000-000000000000'
  expect((await http.call('GET', missing, AGED)).status).toBe(404)
  expect((await list(AGED, '?state=NONE')).status).toBe(400)
  expect((await list(AGED, '?state=NONE')).status).toBe(400)
  expect(readings).toBe(0)
})

test('after a read that failed, the callers that waited read for themselves', async () => {
  const { promise, reject } = Promise.withResolvers<void>()
  gate = promise
  const failing = list()
  await expect.poll(() => readings).toBe(1)
  const waiting = list()
  gate = Promise.resolve()
  reject(new Error('a bug'))
  expect((await failing).status).toBe(500)
  expect((await waiting).status).toBe(200)
})
