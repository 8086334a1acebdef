import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { builtDashboard } from '../../../scripts/dashboard.mjs'
import { full } from '../../../scripts/testing/size.ts'
import {
  AccessClock,
  type AccessScene,
  accessScene,
  accessTokens,
  credentials,
  IDENTITIES,
  type Identity,
  liftMaxima,
  OWNER,
  PUBLIC_URL,
  type Tokens,
} from '../../src/testing/http/access-scene.ts'
import { type Call, type TestApp, testApp } from '../../src/testing/http/app.ts'
import { FAILURE, JOB, RESULT } from '../../src/testing/http/zpe.ts'
import { testBlobs } from '../../src/testing/services/artifacts.ts'
import { ENGINES } from '../../src/testing/services/services.ts'
import { type ChangeLog, watchChanges } from '../../src/testing/store/change-log.ts'

/** Each row of the table names one of these groups. */
const GROUPS = {
  everybody: IDENTITIES,
  readers: ['viewer', 'operator', 'admin', 'open mode'],
  /** In such a list, submitters see only what is their own. */
  users: ['viewer', 'owner', 'stranger', 'operator', 'admin', 'open mode'],
  submitters: ['owner', 'stranger', 'operator', 'admin', 'open mode'],
  /** May see the owner's things. */
  watchers: ['viewer', 'owner', 'operator', 'admin', 'open mode'],
  /** A stream token is signed with the API token, which a session does not have. */
  'watchers with a token': ['viewer', 'owner', 'operator', 'admin', 'open mode'],
  /** May change the owner's things. */
  keepers: ['owner', 'operator', 'admin', 'open mode'],
  'user itself': ['owner', 'open mode'],
  operators: ['operator', 'admin', 'open mode'],
  admins: ['admin', 'open mode'],
  /** The API token in the body is the credential. Open mode has none. */
  'everybody with a token': IDENTITIES.filter((identity) => !/^open mode|^session, other site/.test(identity)),
  /** Signing out is also for a session that is over. */
  'everybody with their own session': IDENTITIES.filter((identity) => !/^session(?! of).+/.test(identity)),
  /** Open mode has no tokens: the first token ends it. */
  'admins with tokens': ['admin'],
  workers: ['worker', 'other worker'],
  /** The worker that has the lease. */
  holder: ['worker'],
  streams: ['viewer', 'owner', 'operator', 'admin', 'open mode', 'stream token', 'stream token in the URL'],
  'watchers and holder': ['viewer', 'owner', 'operator', 'admin', 'open mode', 'worker'],
  'keepers and holder': ['owner', 'operator', 'admin', 'open mode', 'worker'],
} as const satisfies Record<string, readonly Identity[]>

type Group = keyof typeof GROUPS
type Ask = (scene: AccessScene, identity: Identity) => Call & { query?: string }

const json = (body: object): Ask => (() => ({ body })) as Ask
const leaseOf = (scene: AccessScene) => scene.params.lease_id ?? ''
const error = { error_code: 'BROKEN', error_message: 'It broke' }

/** The permissions: one row for each route, with a request that the route has no other reason to refuse. */
const TABLE: Readonly<Record<string, Group | readonly [Group, Ask]>> = {
  'GET /healthz': 'everybody',
  'GET /readyz': 'everybody',
  'GET /metrics': 'readers',
  'GET /v1/stats': 'readers',
  'GET /v1/stats/rates': 'readers',
  'GET /v1/stats/series': 'readers',
  'GET /v1/system': 'readers',
  'GET /v1/jobs/{job_id}/events': 'streams',
  'GET /v1/events': 'operators',
  'POST /v1/jobs': ['submitters', json({ kind: 'work', queue: 'more' })],
  'GET /v1/jobs': 'users',
  'GET /v1/jobs/counts': 'users',
  'POST /v1/jobs/batch': ['submitters', json({ jobs: [{ kind: 'work', queue: 'more' }] })],
  'GET /v1/jobs/{job_id}': 'watchers',
  'POST /v1/jobs/{job_id}/cancel': 'keepers',
  'GET /v1/jobs/{job_id}/result': 'watchers',
  'GET /v1/jobs/{job_id}/state': 'watchers',
  'POST /v1/jobs/{job_id}/stream-token': 'watchers with a token',
  'GET /v1/jobs/{job_id}/logs': 'watchers',
  'GET /v1/jobs/{job_id}/artifacts': 'watchers and holder',
  'POST /v1/jobs/{job_id}/retry': ['keepers', json({})],
  'GET /v1/idempotency-keys': 'users',
  'GET /v1/idempotency-keys/{key}': 'watchers',
  'PATCH /v1/idempotency-keys/{key}': ['keepers', json({ ttl_hours: 48 })],
  'POST /v1/reservations': ['submitters', json({})],
  'GET /v1/reservations': 'users',
  'GET /v1/reservations/{reservation_id}': 'watchers',
  'POST /v1/reservations/{reservation_id}/consume': [
    'user itself',
    ({ params }) => ({ body: { job_id: params.job_id } }),
  ],
  'POST /v1/reservations/{reservation_id}/release': 'keepers',
  'GET /v1/quotas/{user_id}': 'watchers',
  'PUT /v1/quotas/{user_id}': ['admins', json({ max_concurrent: 1_000 })],
  'DELETE /v1/quotas/{user_id}': 'admins',
  'GET /v1/users': 'readers',
  'POST /v1/tokens': ['admins', json({ user_id: 'somebody', role: 'viewer' })],
  'GET /v1/tokens': 'admins',
  'DELETE /v1/tokens/{token_id}': 'admins with tokens',
  'POST /v1/session': ['everybody with a token', ({ anyToken }) => ({ body: { token: anyToken } })],
  'GET /v1/session': 'users',
  'DELETE /v1/session': 'everybody with their own session',
  'POST /v1/workers/enroll-tokens': ['operators', json({})],
  'POST /v1/workers/register': ['everybody', ({ enrollTokens }) => ({ body: { enroll_token: enrollTokens[1] } })],
  'POST /v1/workers/renew': 'workers',
  'POST /v1/workers/detach': 'workers',
  'GET /v1/workers': 'readers',
  'GET /v1/workers/{worker_id}': 'readers',
  'DELETE /v1/workers/{worker_id}': 'operators',
  'POST /v1/workers/{worker_id}/drain': 'operators',
  'POST /v1/workers/{worker_id}/resume': 'operators',
  'POST /v1/leases': ['holder', ({ queue }) => ({ body: { queues: [queue], wait_seconds: 0 } })],
  'POST /v1/leases/{lease_id}/start': ['holder', json({ start_id: 'again' })],
  'POST /v1/leases/{lease_id}/heartbeat': ['holder', json({})],
  'POST /v1/leases/heartbeat': ['holder', (scene) => ({ body: { lease_ids: [leaseOf(scene)] } })],
  'POST /v1/leases/cancels': ['workers', json({ wait_seconds: 0 })],
  'POST /v1/leases/{lease_id}/logs': ['holder', json({ chunks: [{ n: 0, stream: 'stdout', text: 'one' }] })],
  'POST /v1/leases/{lease_id}/events': ['holder', json({ events: [{ stage: 'progress', seq: 1 }] })],
  'POST /v1/artifacts': ['keepers and holder', artifactOf],
  'POST /v1/leases/report': ['holder', (scene) => ({ body: { reports: [{ lease_id: leaseOf(scene), ...error }] } })],
  'POST /v1/leases/{lease_id}/failed': ['holder', json(error)],
  'POST /v1/leases/{lease_id}/result': ['holder', json({ result: 1 })],
  'POST /v1/leases/{lease_id}/release': ['holder', json({})],
  'GET /v1/definitions/{name}/occurrences': 'readers',
  'POST /v1/definitions/{name}/run': 'operators',
  'POST /v1/definitions/{name}/backfill': ['operators', json({ from: '2026-01-01T00:00:00Z', dry_run: true })],
  'GET /v1/definitions/{name}/backfills': 'readers',
  'GET /v1/definitions/{name}/backfills/{backfill_id}': 'readers',
  'POST /v1/definitions/{name}/backfills/{backfill_id}/abort': 'operators',
  'GET /v1/queues': 'readers',
  'GET /v1/queues/{name}': 'readers',
  'PUT /v1/queues/{name}': ['operators', json({ max_concurrent: 100 })],
  'GET /v1/dead-letters': 'users',
  'GET /v1/dead-letters/groups': 'users',
  'GET /v1/dead-letters/{job_id}': 'watchers',
  'POST /v1/operations': ['submitters', json({ action: 'cancel', filter: { queue: 'none' } })],
  'GET /v1/operations': 'users',
  'GET /v1/operations/{operation_id}': 'watchers',
  'POST /v1/operations/{operation_id}/abort': 'keepers',
  'POST /v1/dead-letters/redrive': ['submitters', json({ filter: {}, dry_run: true })],
  'GET /v1/dead-letters/redrives': 'users',
  'GET /v1/dead-letters/redrives/{redrive_id}': 'watchers',
  'POST /v1/dead-letters/redrives/{redrive_id}/abort': 'keepers',
  'POST /v1/definitions': ['operators', ({ queue }) => ({ body: { name: `more-${queue}`, kind: 'work' } })],
  'GET /v1/definitions': 'readers',
  'GET /v1/definitions/{name}': 'readers',
  'PUT /v1/definitions/{name}': ['operators', json({ kind: 'work' })],
  'DELETE /v1/definitions/{name}': 'operators',
  'POST /v1/definitions/{name}/pause': 'operators',
  'POST /v1/definitions/{name}/resume': 'operators',
  'GET /v1/definitions/{name}/ticks': 'readers',
  'POST /v1/definitions/preview': ['readers', json({ schedule: { cron: '@daily' } })],
  'POST /v1/triggers': ['submitters', json({ topic: 'any', dedupe_key: 'one' })],
  'GET /v1/triggers': 'users',
  'GET /v1/triggers/{trigger_id}': 'watchers',
  'GET /v1/definitions/{name}/triggers': 'readers',
  'PUT /v1/hooks/{name}': ['operators', json({ scheme: 'standard', topic: 'hooks' })],
  'GET /v1/hooks/{name}': 'readers',
  'DELETE /v1/hooks/{name}': 'operators',
  /** The signature is the credential. */
  'POST /v1/hooks/{name}': ['everybody', ({ delivery }, identity) => delivery(identity.replaceAll(/\W/g, '-'))],
  'GET /v1/hooks': 'readers',
  'POST /v1/webhooks': ['operators', json({ url: PUBLIC_URL })],
  'GET /v1/webhooks': 'readers',
  'GET /v1/webhooks/{webhook_id}': 'readers',
  'PATCH /v1/webhooks/{webhook_id}': ['operators', json({ description: 'changed' })],
  'POST /v1/webhooks/{webhook_id}/rotate-secret': ['operators', json({})],
  'POST /v1/webhooks/{webhook_id}/test': 'operators',
  'GET /v1/webhooks/{webhook_id}/deliveries': 'readers',
  'POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redrive': 'operators',
  'POST /v1/webhooks/{webhook_id}/redrive': 'operators',
  'DELETE /v1/webhooks/{webhook_id}': 'operators',
  'GET /v1/callbacks': 'readers',
  'POST /v1/callbacks/redrive': 'operators',
  'GET /v1/callbacks/secret': 'submitters',
  'POST /v1/callbacks/rotate-secret': 'submitters',
  'POST /v1/jobs/{job_id}/callback/redrive': 'keepers',
  'GET /v1/settings': 'readers',
  'GET /v1/settings/{name}': 'readers',
  'PUT /v1/settings/{name}': ['admins', json({ value: 200 })],
  'DELETE /v1/settings/{name}': 'admins',
  'POST /v1/backups': 'admins',
  'GET /v1/audit': 'operators',
  'GET /v1/alerts': 'readers',
  'GET /v1/artifacts/{artifact_id}': 'watchers',
  'HEAD /v1/artifacts/{artifact_id}': 'watchers',
  'POST /api/cloud/jobs/submit': ['submitters', json({ config_name_to_load: 'another' })],
  'GET /api/cloud/jobs': 'users',
  'GET /api/cloud/jobs/{job_id}': 'watchers',
  'DELETE /api/cloud/jobs/{job_id}': 'keepers',
  'POST /api/cloud/jobs/{job_id}/cancel': 'keepers',
  'GET /api/cloud/jobs/{job_id}/logs': 'watchers',
  'GET /api/cloud/jobs/{job_id}/logs/stream': 'watchers',
  'GET /api/cloud/metrics/cost-limit': 'users',
  'GET /api/cloud/metrics/quota': 'users',
  'GET /api/cloud/metrics/status': 'users',
  'GET /api/cloud/health': 'users',
  'POST /calc/zpe/jobs': ['submitters', json(JOB)],
  'GET /calc/zpe/jobs/{job_id}': 'watchers',
  'GET /calc/zpe/jobs/{job_id}/result': 'watchers',
  'GET /calc/zpe/jobs/{job_id}/files': ['watchers', () => ({ query: 'kind=summary' })],
  'POST /calc/zpe/compute/enroll-tokens': 'operators',
  'POST /calc/zpe/compute/servers/register': [
    'everybody',
    ({ enrollTokens }) => ({ body: { token: enrollTokens[2] } }),
  ],
  'DELETE /calc/zpe/compute/servers/{worker_id}': 'operators',
  'POST /calc/zpe/compute/jobs/lease': 'holder',
  'POST /calc/zpe/compute/jobs/{job_id}/result': ['holder', json(RESULT)],
  'POST /calc/zpe/compute/jobs/{job_id}/failed': ['holder', json(FAILURE)],
  // These pages and files are not in OpenAPI. They show no data by themselves.
  'GET /': 'everybody',
  'GET /jobs': 'everybody',
  'GET /jobs/{id}': 'everybody',
  'GET /queues': 'everybody',
  'GET /workers': 'everybody',
  'GET /schedules': 'everybody',
  'GET /schedules/{name}': 'everybody',
  'GET /dead-letters': 'everybody',
  'GET /users': 'everybody',
  'GET /keys': 'everybody',
  'GET /tokens': 'everybody',
  'GET /audit': 'everybody',
  'GET /alerts': 'everybody',
  'GET /webhooks': 'everybody',
  'GET /webhooks/{id}': 'everybody',
  'GET /settings': 'everybody',
  'GET /system': 'everybody',
  'GET /assets/{file}': 'everybody',
  'GET /agent.mjs': 'everybody',
  'GET /openapi.json': 'everybody',
  'GET /docs': 'everybody',
  'GET /docs/*': 'everybody',
}

/** Users upload the inputs of a job; a worker uploads the outputs of its run. */
function artifactOf(scene: AccessScene, identity: Identity): Call & { query: string } {
  const whose = identity.endsWith('worker') ? `lease_id=${leaseOf(scene)}` : `job_id=${scene.waitingJob}`
  const headers = { 'content-type': 'application/octet-stream' }
  return { query: `name=input.bin&${whose}`, headers, body: 'some bytes' }
}

interface Route {
  row: string
  method: string
  path: string
  allowed: boolean
  ask: Ask
}

function routesFor(identity: Identity): Route[] {
  return Object.entries(TABLE).map(([row, entry]) => {
    const [group, ask] = typeof entry === 'string' ? [entry, () => ({})] : entry
    const [method = '', path = ''] = row.split(' ')
    return { row, method, path, allowed: allows(group, identity, method), ask }
  })
}

/** A session may do what its user may do. Without the right CSRF token it only reads. */
function allows(group: Group, identity: Identity, method: string): boolean {
  const members: readonly Identity[] = GROUPS[group]
  if (members.includes(identity)) return true
  const reads = method === 'GET' || method === 'HEAD'
  const asOwner = identity === 'session' || (/^session with.* CSRF token$/.test(identity) && reads)
  return asOwner && members.includes('owner') && group !== 'watchers with a token'
}

/**
 * Things are read and changed before they are deleted. The first token comes last, because it ends open mode, and so does
 * the sign-out.
 */
const ORDER = ['GET', 'HEAD', 'PATCH', 'PUT', 'POST', 'DELETE']
const LAST = ['POST /v1/tokens', 'DELETE /v1/session']
const placeOf = ({ row, method }: Route) => (LAST.includes(row) ? ORDER.length : ORDER.indexOf(method))
const inOrder = (a: Route, b: Route) => placeOf(a) - placeOf(b)

/** The name of a file contains the hash of its content. */
const [ASSET = ''] = readdirSync(join(await builtDashboard(), 'assets'))

function fill(path: string, params: AccessScene['params']): string {
  const [, first, second] = path.split('/')
  const section = first === 'v1' || first === 'api' ? second : 'zpe'
  return path
    .replace('*', 'static/swagger-ui.css')
    .replace('{file}', ASSET)
    .replace(/\{(\w+)\}/g, (_, name: string) => params[`${section}:${name}`] ?? params[name] ?? `no ${name}`)
}

/** A store in memory has no file to copy. This test only checks who may request a backup. */
const backups = { make: async () => ({ name: 'made', rows: 0, bytes: 0 }), list: () => [], remove() {} }

type Answered = { status: number; text: string }

/** The list form of a call is refused if each of its items is. */
function isRefused({ status, text }: Answered): boolean {
  if (status === 200 && text.startsWith('{"data":[{"lease_id"')) {
    const { data } = JSON.parse(text) as { data: { held?: boolean; status?: number }[] }
    return data.every((item) => item.held === false || (item.status ?? 0) >= 400)
  }
  return [401, 403, 404].includes(status) || (status === 409 && text.includes('LEASE_LOST'))
}

/** Permissions do not depend on the engine, so the second engine runs only at full size. */
describe.each(full ? ENGINES : ENGINES.slice(0, 1))('on %s', (engine) => {
  const clock = new AccessClock()
  const apps = new Map<'tokens' | 'open', { http: TestApp; tokens: Partial<Tokens>; changes: ChangeLog }>()
  const closing: (() => Promise<void> | void)[] = []
  let scenes = 0
  let address = 0

  beforeAll(async () => {
    for (const mode of ['tokens', 'open'] as const) {
      const { blobs, remove } = await testBlobs()
      const http = await testApp(engine, { deps: { blobs, backups, world: clock.world } })
      const tokens = mode === 'tokens' ? await accessTokens(http) : {}
      await liftMaxima(http, tokens)
      apps.set(mode, { http, tokens, changes: await watchChanges(http.services.deps.store) })
      closing.push(() => http.close(), remove)
    }
  })
  afterAll(async () => {
    for (const close of closing) await close()
  })

  test.each(IDENTITIES)('%s may do what the table says, and a refused request changes no row', async (identity) => {
    const app = apps.get(identity.startsWith('open mode') ? 'open' : 'tokens')
    if (app === undefined) throw new Error('The servers are there')
    const { http, tokens, changes } = app
    const scene = await accessScene(http, ++scenes, tokens)
    const sent = await credentials(http, clock, scene, tokens, identity)

    async function send({ method, path, ask }: Route): Promise<Answered> {
      const { headers, body, query } = ask(scene, identity)
      const queries = [query, sent.query].filter((part) => part !== undefined).join('&')
      // Failed authentications are counted by address.
      const remoteAddress = `10.0.${(++address >> 8) & 255}.${address & 255}`
      const answer = await http.app.inject({
        method: method as 'GET',
        remoteAddress,
        url: fill(path, scene.params) + (queries === '' ? '' : `?${queries}`),
        headers: {
          host: 'localhost:8001',
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...sent.headers,
          ...headers,
        },
        ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
      })
      return { status: answer.statusCode, text: answer.payload }
    }

    const routes = routesFor(identity)
    await changes.since()
    const wrong: object[] = []
    for (const route of routes.filter(({ allowed }) => !allowed)) {
      const answer = await send(route)
      const changed = await changes.since()
      if (!isRefused(answer) || changed.length > 0) wrong.push({ row: route.row, expected: 'refused', changed, answer })
    }
    for (const route of routes.filter(({ allowed }) => allowed).sort(inOrder)) {
      const answer = await send(route)
      const leaked = identity === 'stranger' && answer.status < 300 && answer.text.includes(OWNER)
      if (isRefused(answer) || answer.status >= 500 || leaked)
        wrong.push({ row: route.row, expected: 'allowed', answer })
    }
    expect(wrong).toEqual([])
  })
})

describe('the table', () => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp('sqlite')
  })
  afterAll(() => http.close())

  const rowOf = (method: string, path: string) => `${method.toUpperCase()} ${path}`

  test('the table has a row for each operation of OpenAPI', async () => {
    const { paths } = (await http.call('GET', '/openapi.json')).body as { paths: Record<string, object> }
    const operations = Object.entries(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => rowOf(method, path)),
    )
    expect(operations.filter((row) => !(row in TABLE))).toEqual([])
    expect(operations.length).toBeGreaterThan(90)
  })

  test('the table has a row for each undescribed route, and no row without a route', async () => {
    const found: string[] = []
    for (const path of registeredPaths(http.app.printRoutes({ commonPrefix: false }))) {
      for (const method of http.app.supportedMethods) {
        const url = fill(path, {}).replaceAll(' ', '-')
        const { status } = await http.call(method, url, { headers: { host: 'elsewhere.example' } })
        // Fastify answers HEAD like GET.
        const isTwin = method === 'HEAD' && !(`HEAD ${path}` in TABLE)
        if (status !== 405 && !isTwin) found.push(rowOf(method, path))
      }
    }
    expect(found.sort()).toEqual(Object.keys(TABLE).sort())
  })
})

/** The paths of the tree that Fastify prints. */
function registeredPaths(tree: string): string[] {
  const open: { depth: number; path: string }[] = []
  const paths: string[] = []
  for (const line of tree.split('\n').filter((text) => text !== '')) {
    const [, branch = '', part = '', methods] = /^([│├└─ ]*)(.*?)(?: \(([^()]*)\))?$/.exec(line) ?? []
    while ((open.at(-1)?.depth ?? -1) >= branch.length) open.pop()
    const path = (open.at(-1)?.path ?? '') + part
    open.push({ depth: branch.length, path })
    // The tree omits the slash before the star.
    if (methods !== undefined) paths.push(path.replace('/docs*', '/docs/*').replace(/:(\w+)/g, '{$1}'))
  }
  return paths
}
