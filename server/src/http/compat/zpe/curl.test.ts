import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { clientTools } from '../../../../../scripts/testing/debian-packages.ts'
import { type FreshDatabase, freshDatabase } from '../../../../../scripts/testing/services.ts'
import { ichidoJson, type Serving, serve } from '../../../cli/testing/cli.ts'
import type { JobPolicy } from '../../../core/run/job.ts'
import type { Store } from '../../../store/port.ts'
import { createDefinition, deleteDefinition } from '../../../store/schedules/definitions.ts'
import { BY, content } from '../../../testing/nodes/ticker.ts'
import { openNode, sql } from '../../../testing/store/store.ts'

/** A real server with its loops, and a client that knows only S1. */

const SCRIPT = fileURLToPath(new URL('../fixtures/s1-curl.sh', import.meta.url))
const INSTALL_TIMEOUT_MS = 600_000
/** Long enough for a worker to report, and short enough for a test to wait for its end. */
const SHORT_SECONDS = 3

let bash: string
let database: FreshDatabase
let store: Store
let serving: Serving
let env: Record<string, string>

beforeAll(async () => {
  bash = (await clientTools()).bash
  database = await freshDatabase()
  store = await openNode(database.url)
  const on = { DATABASE_URL: database.url }
  const token = async (user: string, role: string): Promise<string> =>
    (await ichidoJson(['token', 'create', '--user', user, '--role', role], on)).token
  const [operator, submitter] = [await token('oli', 'operator'), await token('ann', 'submitter')]
  serving = await serve(on)
  const { PATH = '' } = process.env
  env = { PATH, ZPE_URL: serving.url, OPERATOR_TOKEN: operator, SUBMITTER_TOKEN: submitter }
}, INSTALL_TIMEOUT_MS)
afterAll(async () => {
  await serving.stop()
  await store.close()
  await database.leave()
})

/** Retries at once, because the script does not wait long. */
async function lend(policy: JobPolicy): Promise<void> {
  const backoff = { baseSeconds: 0, capSeconds: 0, jitter: 0 }
  await store.write(deleteDefinition('zpe', BY()))
  const made = {
    id: randomUUID(),
    name: 'zpe',
    userId: 'local',
    content: content(null, { policy: { ...policy, backoff } }),
  }
  await store.write(createDefinition(made, BY()))
}

interface Step {
  name: string
  status: number
  body: string
}

function script(life: string): Promise<Step[]> {
  return new Promise((resolve, reject) => {
    execFile(bash, [SCRIPT, life], { env }, (error, stdout, stderr) => {
      if (error !== null) return reject(new Error(`The script ended with ${error.code}: ${stdout}${stderr}`))
      const steps = [...stdout.matchAll(/^(\w+) (\d{3}) (.*(?:\n(?!\w+ \d{3} ).*)*)$/gm)]
      resolve(steps.map(([, name = '', status, body = '']) => ({ name, status: Number(status), body: body.trim() })))
    })
  })
}

/** The output without the polls that found no work. */
const brief = (steps: Step[]) =>
  steps.filter(({ name, status }) => name !== 'lease' || status !== 204).map(({ name, status }) => `${name} ${status}`)
const bodies = (steps: Step[], name: string) =>
  steps.filter((step) => step.name === name && step.status === 200).map((step) => JSON.parse(step.body) as object)

test('a calculation fails once, finishes, and is reported three times', async () => {
  await lend({})
  const steps = await script('finish')
  expect(brief(steps)).toEqual([
    'enroll 200',
    'register 200',
    'idle 204',
    'submit 200',
    'state 200',
    'early 409',
    'lease 200',
    'state 200',
    'failed 200',
    'state 200',
    'lease 200',
    'result 200',
    'result 200',
    'result 409',
    'state 200',
    'read 200',
    'file 200',
    'file 200',
  ])
  expect(bodies(steps, 'state')).toMatchObject(
    ['queued', 'started', 'queued', 'finished'].map((status) => ({ status })),
  )
  expect(bodies(steps, 'failed')).toEqual([{ ok: true, requeued: true, retry_count: 1 }])
  expect(bodies(steps, 'result')).toEqual([
    { ok: true, idempotent: false },
    { ok: true, idempotent: true },
  ])
  expect(bodies(steps, 'read')).toEqual([{ result: { zpe_ev: 0.2672 } }])
  expect(steps.slice(-2).map((step) => step.body)).toEqual(['ZPE 0.2672 eV', 'mode,cm\n0,4310'])
})

test('a calculation becomes a dead letter, and a worker is revoked', async () => {
  await lend({ max_attempts: 3 })
  const steps = await script('dead')
  expect(brief(steps).slice(3)).toEqual([
    ...Array.from({ length: 3 }, () => ['lease 200', 'failed 200']).flat(),
    'state 200',
    'revoke 200',
    'refused 403',
  ])
  expect(bodies(steps, 'failed')).toEqual([
    { ok: true, requeued: true, retry_count: 1 },
    { ok: true, requeued: true, retry_count: 2 },
    { ok: true, requeued: false, retry_count: 3 },
  ])
  expect(bodies(steps, 'state')).toMatchObject([
    { status: 'failed', detail: 'QE_RUNTIME_ERROR: pw.x exited with code 1' },
  ])
  expect(bodies(steps, 'revoke')).toEqual([{ revoked_count: 1 }])
  const { job_id } = bodies(steps, 'submit')[0] as { job_id: string }
  const dead = await sql(store, 'SELECT retry_count FROM ichido.dead_letters WHERE job_id = $1', job_id)
  expect(dead).toEqual([{ retry_count: 3 }])
})

test('a lost worker loses its calculation to another one after its lease', async () => {
  await lend({ timeout_seconds: SHORT_SECONDS })
  const steps = await script('vanish')
  expect(brief(steps)).toEqual([
    ...['enroll 200', 'register 200', 'submit 200', 'lease 200'],
    ...['enroll 200', 'register 200', 'lease 200', 'result 409'],
  ])
  const [first, second] = bodies(steps, 'lease') as { job_id: string; lease_id: string; lease_ttl_seconds: number }[]
  expect(first).toMatchObject({ job_id: second?.job_id, lease_ttl_seconds: SHORT_SECONDS })
  expect(first?.lease_id).not.toBe(second?.lease_id)
})
