import { createHmac } from 'node:crypto'
import type { World } from '@ichido/sdk/world'
import { realWorld } from '../../node/world.ts'
import { CALLBACKS } from '../../core/webhooks/webhook.ts'
import { sql } from '../store/store.ts'
import type { Call, TestApp } from './app.ts'
import { signIn } from './sessions.ts'
import { registeredWorker, type WorkerCalls } from './worker-calls.ts'
import { JOB } from './zpe.ts'

/** Every kind of caller. `owner` and `stranger` are submitters: the jobs of the scene belong to `owner`. */
export const IDENTITIES = [
  'nobody',
  'wrong token',
  'viewer',
  'owner',
  'stranger',
  'operator',
  'admin',
  'worker',
  'other worker',
  'revoked worker',
  'stream token',
  'stream token in the URL',
  'other stream token',
  'expired stream token',
  'enroll token',
  // Sessions of `owner`; the revoked token had the role of an administrator.
  'session',
  'session without CSRF token',
  'session with a wrong CSRF token',
  'session, other site',
  'session of a revoked token',
  'open mode, other site',
  'open mode, proxy',
  // This one comes last, because it creates a token, which ends open mode.
  'open mode',
] as const
export type Identity = (typeof IDENTITIES)[number]

export const OWNER = 'the-owner'
const STREAM_TOKEN_LIFE_MS = 5 * 60_000

/** A world whose clock a scene turns back to create an expired token. */
export class AccessClock {
  #behindMs = 0
  readonly world: World = { ...realWorld, now: () => realWorld.now() - this.#behindMs }

  async before<T>(ms: number, make: () => Promise<T>): Promise<T> {
    this.#behindMs = ms
    try {
      return await make()
    } finally {
      this.#behindMs = 0
    }
  }
}

export interface Tokens {
  viewer: string
  owner: string
  stranger: string
  operator: string
  admin: string
}

export async function accessTokens(http: TestApp): Promise<Tokens> {
  return {
    admin: await http.token('the-admin', 'admin'),
    viewer: await http.token('the-viewer', 'viewer'),
    owner: await http.token(OWNER, 'submitter'),
    stranger: await http.token('a-stranger', 'submitter'),
    operator: await http.token('the-operator', 'operator'),
  }
}

/** Many scenes on one store exceed the limits of one caller. */
export async function liftMaxima(http: TestApp, { admin }: Partial<Tokens>): Promise<void> {
  const as = admin === undefined ? {} : { token: admin }
  const { body } = await http.call('GET', '/v1/settings', as)
  for (const { name, max } of (body as { data: { name: string; max: number }[] }).data) {
    if (!/_per_(user|worker|second)/.test(name)) continue
    const { status, text } = await http.call('PUT', `/v1/settings/${name}`, { ...as, body: { value: max } })
    if (status !== 200) throw new Error(text)
  }
}

/** One of everything that a path can name. All of it belongs to `owner`; the worker holds two of the jobs. */
export interface AccessScene {
  queue: string
  /** For `{job_id}`, or for `{cloud:job_id}` in paths of /api/cloud. */
  params: Readonly<Record<string, string>>
  waitingJob: string
  /** A valid API token; `none` in open mode. */
  anyToken: string
  enrollTokens: string[]
  delivery(id: string): Call
}

/** A public address, which no resolver is asked for. */
export const PUBLIC_URL = 'https://93.184.216.34/'

/** Without tokens the scene is in open mode. */
export async function accessScene(http: TestApp, n: number, tokens: Partial<Tokens>): Promise<AccessScene & Sender> {
  const [queue, key, name] = [`queue-${n}`, `key-${n}`, `name-${n}`]
  const as = (token: string | undefined): Call => (token === undefined ? {} : { token })
  async function make<T>(token: string | undefined, method: string, path: string, body?: unknown): Promise<T> {
    const answer = await http.call(method, path, { ...as(token), ...(body === undefined ? {} : { body }) })
    if (answer.status >= 300) throw new Error(`${method} ${path} was answered with ${answer.text}`)
    return answer.body as T
  }
  const { owner, admin } = tokens
  const submit = async (body: object) => (await make<{ job_id: string }>(owner, 'POST', '/v1/jobs', body)).job_id

  const worker = await registeredWorker(http, [queue, 'zpe'])
  const other = await registeredWorker(http, ['elsewhere'])
  const revoked = await registeredWorker(http, [queue])
  const victim = await registeredWorker(http, [queue])
  // The first use of a token settles it.
  for (const each of [worker, other, revoked, victim]) await each.post('/v1/leases', { queues: [], wait_seconds: 0 })
  await make(admin, 'DELETE', `/v1/workers/${revoked.workerId}`)

  const dead = await submit({ kind: 'work', queue, idempotency_key: `dead-${n}` })
  const [failing] = await worker.lease(queue, { start: true })
  await worker.post(`/v1/leases/${failing?.lease_id}/failed`, {
    error_code: 'BROKEN',
    error_message: 'It broke',
    retryable: false,
  })
  const held = await submit({
    kind: 'work',
    queue,
    idempotency_key: key,
    labels: { of: 'scene' },
    callback_url: PUBLIC_URL,
  })
  await tellCallback(http, held)
  const [lease] = await worker.lease(queue, { start: true })
  const zpe = (await make<{ job_id: string }>(owner, 'POST', '/calc/zpe/jobs', JOB)).job_id
  await leaseZpe(worker, zpe)
  const config = { config_name_to_load: 'a config' }
  const cloud = (await make<{ job_id: string }>(owner, 'POST', '/api/cloud/jobs/submit', config)).job_id
  // A canceled job's log stream ends.
  await make(owner, 'POST', `/api/cloud/jobs/${cloud}/cancel`)
  const waiting = await submit({ kind: 'work', queue, artifacts: [{ name: 'input.bin' }] })

  const definition = { name, kind: 'work', queue, schedule: { cron: '0 0 1 1 *' }, on: { topic: `topic-${n}` } }
  await make(admin, 'POST', '/v1/definitions', definition)
  const backfill = await make<{ backfill_id: string }>(admin, 'POST', `/v1/definitions/${name}/backfill`, {
    from: new Date(realWorld.now() - 366 * 86_400_000).toISOString(),
  })
  const hook = await make<{ secret: string }>(admin, 'PUT', `/v1/hooks/${name}`, { scheme: 'standard', topic: 'hooks' })
  const webhook = await make<{ webhook_id: string }>(admin, 'POST', '/v1/webhooks', { url: PUBLIC_URL })
  const sent = await make<{ delivery_id: string }>(admin, 'POST', `/v1/webhooks/${webhook.webhook_id}/test`)
  const trigger = await make<{ trigger_id: string }>(owner, 'POST', '/v1/triggers', { topic: 'any', dedupe_key: key })
  const reservation = await make<{ reservation_id: string }>(owner, 'POST', '/v1/reservations', {})
  const redrive = await make<{ redrive_id: string }>(owner, 'POST', '/v1/dead-letters/redrive', { job_ids: [dead] })
  const operation = await make<{ operation_id: string }>(owner, 'POST', '/v1/operations', {
    action: 'cancel',
    filter: { queue: `none-${n}` },
  })
  const artifact = await sendArtifact(http, as(owner), `file-${n}`)
  const spare = admin === undefined ? 'none' : await spareToken(http, admin)
  const enrollTokens = await Promise.all(
    [1, 2, 3].map(async () => (await http.services.workers.enroll(LOCAL, {})).enroll_token),
  )
  return {
    queue,
    waitingJob: waiting,
    anyToken: tokens.stranger ?? 'none',
    enrollTokens,
    params: {
      job_id: held,
      'dead-letters:job_id': dead,
      'cloud:job_id': cloud,
      'zpe:job_id': zpe,
      lease_id: lease?.lease_id ?? '',
      key,
      reservation_id: reservation.reservation_id,
      user_id: owner === undefined ? 'local' : OWNER,
      token_id: spare,
      worker_id: victim.workerId,
      name,
      'queues:name': queue,
      'settings:name': 'reap_batch_max',
      backfill_id: backfill.backfill_id,
      redrive_id: redrive.redrive_id,
      operation_id: operation.operation_id,
      trigger_id: trigger.trigger_id,
      artifact_id: artifact,
      webhook_id: webhook.webhook_id,
      delivery_id: sent.delivery_id,
    },
    delivery: (id) => signed(hook.secret, id),
    workers: { worker, 'other worker': other, 'revoked worker': revoked },
    otherJob: dead,
  }
}

/** A message about the job, as if the job had ended. */
async function tellCallback({ services: { deps } }: TestApp, jobId: string): Promise<void> {
  const text = `INSERT INTO ichido.webhook_deliveries (id, webhook_id, type, subject_id, subject_n, payload, url, host, user_id,
      state, attempts, failures, created_at, ended_at)
    VALUES ($1, '${CALLBACKS}', 'job.succeeded', $2, 1, '{}', '${PUBLIC_URL}', 'host', 'local', 'dead', 11, 11, 1, 1)`
  await sql(deps.store, text, realWorld.uuid(), jobId)
}

interface Sender {
  workers: Record<'worker' | 'other worker' | 'revoked worker', WorkerCalls>
  otherJob: string
}

/** The credentials that an identity sends with every request. */
export async function credentials(
  http: TestApp,
  clock: AccessClock,
  scene: AccessScene & Sender,
  tokens: Partial<Tokens>,
  identity: Identity,
): Promise<{ headers: Record<string, string>; query?: string }> {
  const bearer = (token: string | undefined) => ({ headers: { authorization: `Bearer ${token}` } })
  const streamToken = async (jobId: string | undefined) => {
    const call = tokens.owner === undefined ? {} : { token: tokens.owner }
    const answer = await http.call('POST', `/v1/jobs/${jobId}/stream-token`, call)
    return (answer.body as { token: string }).token
  }
  const { job_id: jobId } = scene.params
  switch (identity) {
    case 'nobody':
    case 'open mode':
      return { headers: {} }
    case 'open mode, other site':
      return { headers: { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' } }
    case 'open mode, proxy':
      return { headers: { 'x-forwarded-for': '192.0.2.1' } }
    case 'wrong token':
      return bearer(`ichido_${'x'.repeat(43)}`)
    case 'worker':
    case 'other worker':
    case 'revoked worker':
      return bearer(scene.workers[identity].token)
    case 'stream token':
      return bearer(await streamToken(jobId))
    case 'stream token in the URL':
      return { headers: {}, query: `stream_token=${await streamToken(jobId)}` }
    case 'other stream token':
      return bearer(await streamToken(scene.otherJob))
    case 'expired stream token':
      return bearer(await clock.before(STREAM_TOKEN_LIFE_MS + 1, () => streamToken(jobId)))
    case 'session':
    case 'session without CSRF token':
    case 'session with a wrong CSRF token':
    case 'session, other site': {
      const { cookie, page } = await signIn(http, tokens.owner ?? '')
      if (identity === 'session without CSRF token') return { headers: cookie }
      if (identity === 'session with a wrong CSRF token') {
        const other = await signIn(http, tokens.owner ?? '')
        return { headers: { ...page, 'ichido-csrf': other.page['ichido-csrf'] } }
      }
      return { headers: identity === 'session' ? page : { ...page, 'sec-fetch-site': 'cross-site' } }
    }
    case 'session of a revoked token': {
      const { access } = http.services
      const made = await access.createToken(LOCAL, { userId: OWNER, role: 'admin', name: '', ttlSeconds: null })
      const { page } = await signIn(http, made.token)
      await access.revokeToken(LOCAL, made.token_id)
      return { headers: page }
    }
    case 'enroll token':
      return bearer(scene.enrollTokens[0])
    default:
      return bearer(tokens[identity])
  }
}

/** Earlier scenes have left jobs in the queue. */
async function leaseZpe(worker: WorkerCalls, jobId: string): Promise<void> {
  for (;;) {
    const { status, text } = await worker.post('/calc/zpe/compute/jobs/lease')
    if (status !== 200) throw new Error(`The job ${jobId} is not in its queue: ${text}`)
    if (text.includes(jobId)) return
  }
}

const LOCAL = { userId: 'local', role: 'admin' } as const

async function sendArtifact(http: TestApp, as: Call, name: string): Promise<string> {
  const headers = { 'content-type': 'application/octet-stream' }
  const answer = await http.call('POST', `/v1/artifacts?name=${name}`, { ...as, headers, body: 'some bytes' })
  return (answer.body as { artifact_id: string }).artifact_id
}

async function spareToken(http: TestApp, admin: string): Promise<string> {
  const body = { user_id: 'spare', role: 'viewer' }
  return ((await http.call('POST', '/v1/tokens', { token: admin, body })).body as { token_id: string }).token_id
}

/** A webhook delivery signed according to Standard Webhooks. */
function signed(secret: string, id: string): Call {
  const body = '{}'
  const timestamp = String(Math.floor(realWorld.now() / 1000))
  const key = Buffer.from(secret.replace('whsec_', ''), 'base64')
  const signature = createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')
  return { body, headers: { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${signature}` } }
}
