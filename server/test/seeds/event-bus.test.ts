import { execFile } from 'node:child_process'
import { globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { EventShape, LeaseShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { root } from '../../../scripts/boot/fetch-packages.mjs'
import type { Redis } from '../../../scripts/services/redis.ts'
import { redisPython } from '../../../scripts/testing/debian-packages.ts'
import { freshDatabase, privateRedis } from '../../../scripts/testing/services.ts'
import type { Env } from '../../src/cli/testing/cli.ts'
import { serveHere } from '../../src/cli/testing/serve-here.ts'
import { openSse, type SseClient } from '../../src/testing/http/sse.ts'
import { ENGINES, type Engine } from '../../src/testing/services/services.ts'
import { until } from '../../src/testing/store/store.ts'

/** Installing the packages that S4's code needs may take this long. */
const INSTALL_TIMEOUT_MS = 600_000
const SHARDS = '4'

/** Verbatim code of S4, and a text that identifies its block. */
const BLOCKS = {
  publish: { file: 's4-publish.py', mark: 'IDEMPOTENT_XADD' },
  subscribe: { file: 's4-subscribe.py', mark: 'async def subscribe' },
  test: { file: 's4-test.py', mark: 'test_idempotent_publish' },
} as const

const fixture = (file: string) => readFileSync(new URL(`../../src/bus/redis/fixtures/${file}`, import.meta.url), 'utf8')
const codeOf = (block: keyof typeof BLOCKS) => fixture(BLOCKS[block].file)

let python: string
let folder: string
let redis: Redis
const closers: (() => Promise<unknown>)[] = []
beforeAll(async () => {
  python = await redisPython()
  folder = mkdtempSync(join(tmpdir(), 'ichido-s4-'))
  const driver = fixture('s4-driver.py')
  writeFileSync(join(folder, 'test_s4.py'), [driver, codeOf('publish'), codeOf('test')].join('\n\n'))
  const start = 'if __name__ == "__main__":\n    asyncio.run(main())\n'
  writeFileSync(join(folder, 's4.py'), [driver, codeOf('publish'), codeOf('subscribe'), start].join('\n\n'))
}, INSTALL_TIMEOUT_MS)
afterAll(() => rmSync(folder, { recursive: true }))

function run(args: string[], input = ''): Promise<{ code: number; output: string }> {
  const env = { PATH: process.env.PATH ?? '', REDIS_URL: redis.url, SHARDS, PYTHONDONTWRITEBYTECODE: '1' }
  return new Promise((resolve) => {
    const child = execFile(python, args, { env, cwd: folder }, (_, stdout, stderr) =>
      resolve({ code: child.exitCode ?? -1, output: stdout + stderr }),
    )
    child.stdin?.end(input)
  })
}

type Published = [domain: string, jobId: string, stage: string, seq: number, data: unknown]

/** Publishes with S4's `publish_event`. */
async function publish(...events: Published[]): Promise<boolean[]> {
  const { output } = await run(['s4.py', 'publish'], events.map((event) => `${JSON.stringify(event)}\n`).join(''))
  return output
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
}

/** Reads `count` events with S4's `subscribe`. */
async function subscribe(jobId: string, lastSeq: number, count: number): Promise<{ stage: string; seq: number }[]> {
  const { output } = await run(['s4.py', 'subscribe', 'scan', jobId, String(lastSeq), String(count)])
  return JSON.parse(output)
}

/** One node on SQLite, or two on PostgreSQL, where the router and gateway of the second node take part. */
async function nodes(engine: Engine): Promise<string[]> {
  const common: Env = { REDIS_URL: redis.url, SHARDS, RELAY_INTERVAL_SECONDS: '0.1' }
  const start = async (env: Env) => {
    const server = await serveHere({ ...common, ...env })
    closers.push(() => server.kill9())
    return server.url
  }
  if (engine === 'sqlite') {
    const dataDir = mkdtempSync(join(tmpdir(), 'ichido-s4-data-'))
    closers.push(async () => rmSync(dataDir, { recursive: true }))
    return [await start({ DATA_DIR: dataDir })]
  }
  const database = await freshDatabase()
  closers.push(() => database.leave())
  return [await start({ DATABASE_URL: database.url }), await start({ DATABASE_URL: database.url })]
}

async function post<T>(url: string, path: string, body: object, token?: string): Promise<T> {
  const auth = token === undefined ? {} : { authorization: `Bearer ${token}` }
  const headers = { 'content-type': 'application/json', ...auth }
  const answer = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })
  expect(answer.status, await answer.clone().text()).toBeLessThan(300)
  return answer.json()
}

const submit = async (url: string, queue: string) =>
  (await post<{ job_id: string }>(url, '/v1/jobs', { kind: 'scan', queue, stages: 'eco2' })).job_id

const eventsOf = async (url: string, jobId: string): Promise<EventShape[]> =>
  (await (await fetch(`${url}/v1/jobs/${jobId}/events`, { headers: { accept: 'application/json' } })).json()).events

/** The events without those of the server. */
const ofWorkers = (events: readonly { stage: string; seq: number }[]) =>
  events.filter(({ stage }) => stage !== 'run').map(({ stage, seq }) => `${stage} ${seq}`)

const ofStream = ({ frames }: SseClient) =>
  ofWorkers(frames.filter(({ event }) => event !== 'end').map(({ data }) => data as EventShape))

async function counted(urls: readonly string[], outcome: string): Promise<number> {
  const pages = await Promise.all(urls.map(async (url) => (await fetch(`${url}/metrics`)).text()))
  const line = new RegExp(`^ichido_foreign_events_total\\{outcome="${outcome}"\\} (\\d+)$`, 'm')
  return pages.reduce((sum, page) => sum + Number(line.exec(page)?.[1] ?? 0), 0)
}

test('the fixtures are the code of S4', () => {
  // A clone without the seeds has only the fixtures.
  for (const seed of globSync(join(root, '..', 'shared', 'seeds', '004*.txt'))) {
    const blocks = [...readFileSync(seed, 'utf8').matchAll(/^```python\n(.*?)^```$/gms)].map(([, code]) => code)
    for (const [name, { mark }] of Object.entries(BLOCKS)) {
      const found = blocks.filter((code) => code?.includes(mark))
      expect(found).toEqual([codeOf(name as keyof typeof BLOCKS)])
    }
  }
})

describe.each(ENGINES)('S4 beside a server on %s', (engine) => {
  let urls: string[]
  beforeAll(async () => {
    redis = await privateRedis()
    closers.push(() => redis.stop())
    urls = await nodes(engine)
  })
  afterAll(async () => {
    for (const close of closers.splice(0).reverse()) await close()
  })

  test("the seed's own test passes, and its event of an unknown job is counted", async () => {
    const { code, output } = await run(['-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_s4.py'])
    expect({ code, output }).toEqual({ code: 0, output: expect.stringContaining('1 passed') })
    await until('the router to skip it', async () => (await counted(urls, 'unknown')) > 0)
    expect(await counted(urls, 'stored')).toBe(0)
  })

  test("the seed's events reach our subscribers once and in order", async () => {
    const [url = '', gateway = url] = urls
    const jobId = await submit(url, 'theirs')
    const stream = await openSse(`${gateway}/v1/jobs/${jobId}/events`)
    const of = (stage: string, seq: number): Published => ['scan', jobId, stage, seq, { status: 'done', seq }]
    const all = [of('vision', 10), of('vision', 11), of('rule', 20), of('answer', 30), of('done', 51)]
    expect(await publish(...all, of('vision', 10))).toEqual([true, true, true, true, true, false])
    // Neither of these is a valid event of this job.
    await publish(of('vision', 99), ['scan', jobId, 'run', 3, {}])
    const wanted = ['vision 10', 'vision 11', 'rule 20', 'answer 30', 'done 51']
    await until('the events', async () => ofStream(stream).length >= wanted.length)
    await until('the refused events', async () => (await counted(urls, 'refused')) >= 2)
    expect(ofStream(stream)).toEqual(wanted)
    stream.close()
    const stored = await eventsOf(url, jobId)
    expect(ofWorkers(stored)).toEqual(wanted)
    expect(stored.map(({ cursor }) => cursor)).toEqual(stored.map((_, i) => i + 1))
    expect(stored.find(({ stage }) => stage === 'done')?.data).toEqual({ status: 'done', seq: 51 })
    expect(await counted(urls, 'stored')).toBe(wanted.length)
  })

  test("our events reach the seed's subscribe loop, which resumes after last_seq", async () => {
    const [url = ''] = urls
    const jobId = await submit(url, 'ours')
    const { enroll_token } = await post<{ enroll_token: string }>(url, '/v1/workers/enroll-tokens', {})
    const { worker_token } = await post<{ worker_token: string }>(url, '/v1/workers/register', {
      enroll_token,
      name: 'w',
    })
    const request = { queues: ['ours'], start: true, start_id: 's' }
    const { leases } = await post<{ leases: LeaseShape[] }>(url, '/v1/leases', request, worker_token)
    const events = [
      { stage: 'vision', seq: 10 },
      { stage: 'rule', seq: 20 },
      { stage: 'done', seq: 51 },
    ]
    await post(url, `/v1/leases/${leases[0]?.lease_id}/events`, { events }, worker_token)
    expect(await subscribe(jobId, 0, 3)).toMatchObject(events)
    expect(await subscribe(jobId, 20, 1)).toMatchObject(events.slice(2))
    // An event that both sides publish is stored once.
    expect(await publish(['scan', jobId, 'vision', 10, {}])).toEqual([false])
    expect(ofWorkers(await eventsOf(url, jobId))).toEqual(['vision 10', 'rule 20', 'done 51'])
  })
})
