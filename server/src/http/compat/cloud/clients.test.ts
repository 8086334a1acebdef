import { randomUUID } from 'node:crypto'
import { globSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { root } from '../../../../../scripts/boot/fetch-packages.mjs'
import { clientTools } from '../../../../../scripts/testing/debian-packages.ts'
import { full } from '../../../../../scripts/testing/size.ts'
import { type Serving, serve } from '../../../cli/testing/cli.ts'
import { type Gate, openGate } from '../../../testing/http/http-gate.ts'
import { type Ended, S0_CLIENTS, type S0Client, S0Runner, sourceOf } from '../../../testing/http/s0-clients.ts'
import type { CloudAnswer, CloudJob } from './shapes.ts'

/** Installing the packages of S0's clients may take this long. */
const INSTALL_TIMEOUT_MS = 600_000

let clients: S0Runner
let serving: Promise<Serving>
let gate: Gate
let folder: string

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'ichido-clients-'))
  clients = new S0Runner(await clientTools(), folder)
  start()
  gate = await openGate(url)
  await serving
}, INSTALL_TIMEOUT_MS)
afterAll(async () => {
  await gate.close()
  await (await serving).stop()
  rmSync(folder, { recursive: true })
})
beforeEach(() => {
  gate.count = 0
})

function start(): void {
  serving = serve({ DATA_DIR: join(folder, 'data') })
  // The awaiting test gets the failure, but it may not await yet.
  serving.catch(() => {})
}

const url = async () => (await serving).url

/** kill -9. The server is restarting on another port when this settles. */
async function crash(): Promise<void> {
  await (await serving).kill9()
  start()
}

async function call(method: string, path: string, body?: object): Promise<unknown> {
  const headers = { 'content-type': 'application/json' }
  const init = body === undefined ? { method } : { method, headers, body: JSON.stringify(body) }
  const answer = await fetch((await url()) + path, init)
  expect(answer.status).toBe(200)
  return answer.json()
}

/** Each test has its own config, to find its own jobs. */
const newConfig = () => `config-${randomUUID()}`

async function jobsOf(config: string): Promise<string[]> {
  const { jobs } = (await call('GET', '/api/cloud/jobs?limit=200')) as { jobs: CloudJob[] }
  return jobs.filter((job) => job.config_name === config).map((job) => job.job_id)
}

async function withFullQuota<T>(work: () => Promise<T>): Promise<T> {
  const first = await call('POST', '/api/cloud/jobs/submit?provider=replicate', { config_name_to_load: newConfig() })
  expect((first as CloudAnswer).success).toBe(true)
  await call('PUT', '/v1/quotas/local', { max_concurrent: 1 })
  try {
    return await work()
  } finally {
    await call('DELETE', '/v1/quotas/local')
  }
}

const QUOTA = 'Quota exceeded: Maximum 1 concurrent jobs allowed'

/** The job is stored, and the server is killed before it answers. At full size it is down at first. */
const crashUnheard = () => void gate.mishaps.push(...(full ? (['refuse'] as const) : []), crash)
const TRIES = full ? 3 : 2

test('the fixtures are the code of S0', () => {
  // A clone of the repository has no seeds, only the fixtures.
  for (const seed of globSync(join(root, '..', 'shared', 'seeds', '000*.txt'))) {
    const blocks = [...readFileSync(seed, 'utf8').matchAll(/^```(\w+)\n(.*?)^```$/gms)]
    for (const [name, { language, mark }] of Object.entries(S0_CLIENTS)) {
      const found = blocks.filter(([, its, code]) => its === language && code?.includes(mark))
      expect(found.map(([, , code]) => code)).toEqual([sourceOf(name as S0Client)])
    }
  }
})

describe('the bash script', () => {
  const script = (config: string, sha: string) =>
    clients.bash(gate.url, config, { GITHUB_REPOSITORY: 'example/models', GITHUB_SHA: sha })

  test('submits, and finds its job again', async () => {
    const [config, sha] = [newConfig(), randomUUID()]
    const first = await script(config, sha)
    const [job] = await jobsOf(config)
    expect(first).toMatchObject({ code: 0, output: expect.stringContaining(`Created new job: ${job}\nJOB_ID=${job}`) })
    const second = await script(config, sha)
    expect(second).toMatchObject({ code: 0, output: expect.stringContaining(`Matched existing job: ${job}`) })
    expect(await jobsOf(config)).toEqual([job])
  })

  test('submits without any context', async () => {
    const config = newConfig()
    const { code, output } = await clients.bash(gate.url, config)
    expect({ code, output }).toMatchObject({ code: 0, output: expect.stringContaining('Created new job') })
    expect(await jobsOf(config)).toHaveLength(1)
  })

  test('reports a full quota, and does not retry', async () => {
    const config = newConfig()
    const { code, output } = await withFullQuota(() => script(config, randomUUID()))
    expect({ code, output }).toMatchObject({ code: 1, output: expect.stringContaining(`Quota exceeded: ${QUOTA}`) })
    expect(gate.count).toBe(1)
    expect(await jobsOf(config)).toEqual([])
  })

  test('finds the job whose answer was lost', async () => {
    const config = newConfig()
    crashUnheard()
    const { code, output } = await script(config, randomUUID())
    const [job, ...more] = await jobsOf(config)
    expect({ code, output }).toMatchObject({ code: 0, output: expect.stringContaining(`Matched existing job: ${job}`) })
    expect(output).toContain('Request failed, retrying in 2s')
    expect({ count: gate.count, more }).toEqual({ count: TRIES, more: [] })
  })
})

describe('the Python client on requests', () => {
  // It calls http://localhost:8001, which may be taken, so the gate is its proxy.
  const client = (config: string) => clients.requests(config, { http_proxy: gate.url, no_proxy: '' })

  const answerOf = ({ output }: Ended) => JSON.parse(output.trim().split('\n').at(-1) ?? '') as CloudAnswer

  test('submits', async () => {
    const config = newConfig()
    const ended = await client(config)
    expect(ended.code).toBe(0)
    const [job] = await jobsOf(config)
    expect(answerOf(ended)).toMatchObject({ success: true, job_id: job, status: 'uploading', idempotent_hit: false })
    expect(gate.count).toBe(1)
  })

  test('reports a full quota, and does not retry', async () => {
    const config = newConfig()
    expect(await withFullQuota(() => client(config))).toMatchObject({ code: 3, output: `quota: ${QUOTA}\n` })
    expect(gate.count).toBe(1)
    expect(await jobsOf(config)).toEqual([])
  })

  test('finds the job whose answer was lost', async () => {
    const config = newConfig()
    crashUnheard()
    const ended = await client(config)
    const [job, ...more] = await jobsOf(config)
    expect(ended).toMatchObject({ code: 0, output: expect.stringContaining(`Retry matched existing job: ${job}`) })
    expect(answerOf(ended)).toMatchObject({ success: true, job_id: job, status: 'queued', idempotent_hit: true })
    expect({ count: gate.count, more }).toEqual({ count: TRIES, more: [] })
  })
})

describe('the Python client on aiohttp', () => {
  async function client(config: string, key: string | null, run_name: string | null = null): Promise<unknown> {
    const call = { base_url: gate.url, config_name: config, idempotency_key: key, tracker_run_name: run_name }
    const { output } = await clients.aiohttp(call)
    return JSON.parse(output)
  }

  test('submits, and finds its job again', async () => {
    const [config, key] = [newConfig(), 'training-batch-2024-01-15']
    const first = await client(config, key, 'flux-lora-experiment-42')
    const [job] = await jobsOf(config)
    expect(first).toEqual({ success: true, job_id: job, error: null, was_duplicate: false })
    const second = await client(config, key, 'flux-lora-experiment-43')
    expect(second).toEqual({ success: true, job_id: job, error: null, was_duplicate: true })
    expect(await jobsOf(config)).toEqual([job])
  })

  test('reports a full quota', async () => {
    const config = newConfig()
    const answer = await withFullQuota(() => client(config, null))
    expect(answer).toEqual({ success: false, job_id: null, error: QUOTA, was_duplicate: false })
    expect(gate.count).toBe(1)
  })

  test('finds the job whose answer was lost', async () => {
    const [config, key] = [newConfig(), randomUUID()]
    gate.mishaps.push(crash)
    const lost = await client(config, key)
    expect(lost).toMatchObject({ success: false, error: expect.stringContaining('Connection error') })
    const found = await client(config, key)
    const [job, ...more] = await jobsOf(config)
    expect(found).toEqual({ success: true, job_id: job, error: null, was_duplicate: true })
    expect(more).toEqual([])
  })
})

describe('the step of GitHub Actions', () => {
  const step = (sha: string, runNumber: number) => clients.actions(gate.url, sha, runNumber)

  // The step contains the name of its config, so its jobs are found by their key.
  async function jobsOfKey(sha: string): Promise<string[]> {
    const key = encodeURIComponent(`gh-example/models-${sha}`)
    const { data } = (await call('GET', `/v1/jobs?key=${key}`)) as { data: { job_id: string }[] }
    return data.map((job) => job.job_id)
  }

  test('submits; a rerun of the commit finds the job, though its run number is another', async () => {
    const sha = randomUUID()
    const first = await step(sha, 1)
    const [job] = await jobsOfKey(sha)
    expect(first).toEqual({ code: 0, output: '', outputs: `job_id=${job}\n` })
    const second = await step(sha, 2)
    const notice = '::notice::Matched existing job from previous run\n'
    expect(second).toEqual({ code: 0, output: notice, outputs: `job_id=${job}\n` })
    expect(await jobsOfKey(sha)).toEqual([job])
  })

  test('reports a full quota', async () => {
    const sha = randomUUID()
    const { code, output, outputs } = await withFullQuota(() => step(sha, 1))
    expect({ code, output, outputs }).toEqual({
      code: 1,
      output: `::error::Job submission failed: ${QUOTA}\n`,
      outputs: '',
    })
    expect(gate.count).toBe(1)
    expect(await jobsOfKey(sha)).toEqual([])
  })

  test('finds the job whose answer was lost', async () => {
    const sha = randomUUID()
    gate.mishaps.push(crash)
    expect(await step(sha, 1)).toMatchObject({
      code: 1,
      output: '::error::Job submission failed: Request failed\n',
      outputs: '',
    })
    const again = await step(sha, 2)
    const [job, ...more] = await jobsOfKey(sha)
    expect(again).toMatchObject({ code: 0, outputs: `job_id=${job}\n` })
    expect(more).toEqual([])
  })
})
