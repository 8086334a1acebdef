import type { ErrorBody, SubmitResponse } from '@ichido/sdk/protocol'
import { pino } from 'pino'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Role } from '../../core/limits/roles.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { csrfTokenOf } from '../../services/access/sessions.ts'
import { type Answer, type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { type SignedIn, setCookieOf, signIn } from '../../testing/http/sessions.ts'
import { openSse } from '../../testing/http/sse.ts'
import { testBlobs } from '../../testing/services/artifacts.ts'
import { beginPublishing } from '../../testing/services/publishing.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { registered } from '../../testing/services/workers.ts'
import { sql } from '../../testing/store/store.ts'
import { FAILURES_MAX } from './rates.ts'

const errorOf = ({ body }: Answer) => (body as ErrorBody).error
/** The clock of the caches. */
let elapsedMs = 0
const world = { ...realWorld, monotonic: () => elapsedMs }

describe.each(ENGINES)('a session on %s', (engine) => {
  let http: TestApp
  let other: TestApp
  let files: Awaited<ReturnType<typeof testBlobs>>
  let url = ''
  const logged: string[] = []
  beforeAll(async () => {
    const logger = pino({ level: 'trace' }, { write: (line: string) => void logged.push(line) })
    files = await testBlobs()
    const deps = { world, blobs: files.blobs }
    const trustProxy = '127.0.0.1'
    http = await testApp(engine, {
      openMode: false,
      trustProxy,
      deps,
      logger,
      allowedOrigins: { any: false, exact: new Set(['http://localhost:3000']) },
    })
    const opened = { store: http.services.deps.store, remove: async () => {} }
    other = await testApp(engine, { openMode: false, trustProxy, deps, opened })
    url = await other.app.listen({ host: '127.0.0.1', port: 0 })
  })
  afterAll(async () => {
    await other.app.close()
    await http.close()
    files.remove()
  })

  let users = 0
  const newUser = () => `user-${++users}`
  /** Failures are counted by address. */
  const from = () => ({ 'x-forwarded-for': `192.0.2.${++users}` })

  async function ownerOf({ body }: Answer): Promise<unknown> {
    const { job_id } = body as SubmitResponse
    const [job] = await sql(http.services.deps.store, 'SELECT user_id FROM ichido.jobs WHERE id = $1', job_id)
    return job?.user_id
  }

  const ABILITIES: [Role, string[]][] = [
    ['viewer', ['readAll', 'readOwn']],
    ['submitter', ['readOwn', 'submit']],
    ['operator', ['readAll', 'readOwn', 'submit', 'operate']],
    ['admin', ['readAll', 'readOwn', 'submit', 'operate', 'administer']],
  ]
  test.each(ABILITIES)('tells what a %s may do', async (role, abilities) => {
    const user_id = newUser()
    const token = await http.token(user_id, role)
    const { body, cookie, secret } = await signIn(http, token)
    const expires_at = expect.stringMatching(/^\d{4}-.*Z$/)
    const session = { user_id, role, abilities, expires_at, csrf_token: csrfTokenOf(secret), open: false }
    expect(body).toEqual(session)
    for (const node of [http, other]) {
      expect((await node.call('GET', '/v1/session', { headers: cookie })).body).toEqual(session)
      const bearer = await node.call('GET', '/v1/session', { token })
      expect([bearer.body, bearer.headers['cache-control']]).toEqual([
        { ...session, expires_at: null, csrf_token: null },
        'no-store',
      ])
    }
  })

  test('opens what its token opens, also streams and files', async () => {
    const user = newUser()
    const token = await http.token(user, 'submitter')
    const { cookie, page } = await signIn(http, token)
    const made = await http.call('POST', '/v1/jobs', { headers: page, body: { kind: 'work' } })
    expect([made.status, await ownerOf(made)]).toEqual([201, user])
    const run = await beginPublishing(http.services, {}, { userId: user, role: 'submitter' })
    await run.succeed()
    const stream = await openSse(`${url}/v1/jobs/${run.jobId}/events`, cookie)
    expect([stream.status, await stream.ended, stream.frames.length]).toEqual([200, true, 4])
    const headers = { ...page, 'content-type': 'application/octet-stream' }
    const sent = await http.call('POST', '/v1/artifacts?name=a.txt', { headers, body: 'some bytes' })
    const { artifact_id } = sent.body as { artifact_id: string }
    const file = await other.call('GET', `/v1/artifacts/${artifact_id}`, { headers: cookie })
    expect([file.status, file.text]).toEqual([200, 'some bytes'])
    expect((await other.call('HEAD', `/v1/artifacts/${artifact_id}`, { headers: cookie })).status).toBe(200)
    // A stream token is signed with the API token, which a session does not have.
    const refused = await http.call('POST', `/v1/jobs/${run.jobId}/stream-token`, { headers: page })
    expect([refused.status, errorOf(refused).message]).toEqual([403, expect.stringContaining('needs none')])
  })

  test('the fast route leaves a request with a session to the CSRF check', async () => {
    const user = newUser()
    const { cookie, page } = await signIn(other, await http.token(user, 'submitter'))
    const submit = (headers: Record<string, string>) =>
      fetch(`${url}/v1/jobs`, {
        method: 'POST',
        headers: { ...headers, 'content-type': 'application/json' },
        body: '{"kind":"work"}',
      })
    // The node knows the session by now.
    expect((await other.call('GET', '/v1/jobs', { headers: cookie })).status).toBe(200)
    expect((await submit(cookie)).status).toBe(403)
    expect((await submit(page)).status).toBe(201)
    const jobs = await sql(http.services.deps.store, 'SELECT id FROM ichido.jobs WHERE user_id = $1', user)
    expect(jobs).toHaveLength(1)
  })

  const OWN = 'http://localhost:8001'
  const FOREIGN: [string, Record<string, string>, RegExp][] = [
    ['another site', { origin: 'https://evil.example' }, /origin is "https:\/\/evil.example"/],
    ['another port', { origin: 'http://localhost:3000' }, /PUBLIC_URL/],
    ['another scheme', { origin: 'https://localhost:8001' }, /must be the server's own, http:\/\/localhost:8001/],
    ['a sandbox', { origin: 'null' }, /origin/],
    ['a cross-site page', { 'sec-fetch-site': 'cross-site' }, /sec-fetch-site is "cross-site"/],
    ['another host of the site', { origin: OWN, 'sec-fetch-site': 'same-site' }, /same-origin or none/],
  ]
  test.each(FOREIGN)('refuses every request from %s, and changes nothing', async (_, headers, problem) => {
    const user = newUser()
    const token = await http.token(user, 'admin')
    const { page } = await signIn(http, token)
    const calls: [string, string, unknown?][] = [
      ['GET', '/v1/tokens'],
      ['GET', '/v1/session'],
      ['HEAD', '/v1/artifacts/00000000-0000-7000-8000-000000000000'],
      ['POST', '/v1/jobs', { kind: 'work' }],
      ['PUT', '/v1/quotas/ann', { max_concurrent: 1 }],
      ['DELETE', '/v1/session'],
      ['POST', '/v1/session', { token }],
    ]
    for (const [method, path, body] of calls) {
      const answer = await http.call(method, path, { headers: { ...page, ...headers }, body })
      expect([method, path, answer.status, answer.headers['set-cookie']]).toEqual([method, path, 403, undefined])
      if (method === 'HEAD') continue
      expect(errorOf(answer)).toMatchObject({ code: 'CSRF_REFUSED', message: expect.stringMatching(problem) })
      expect(answer.text).not.toContain(page['ichido-csrf'])
    }
    const { store } = http.services.deps
    expect(await sql(store, 'SELECT id FROM ichido.jobs WHERE user_id = $1', user)).toEqual([])
    expect(await sql(store, 'SELECT user_id FROM ichido.sessions WHERE user_id = $1', user)).toHaveLength(1)
    expect((await http.call('GET', '/v1/jobs', { headers: page })).status).toBe(200)
    // A token in a header is not sent by browsers on their own.
    expect((await http.call('GET', '/v1/jobs', { token, headers: { ...page, ...headers } })).status).toBe(200)
  })

  test.each([
    { origin: OWN },
    { origin: OWN, 'sec-fetch-site': 'same-origin' },
    { 'sec-fetch-site': 'none' },
    { origin: 'https://jobs.lab', host: 'jobs.lab', 'x-forwarded-proto': 'https' },
    { origin: 'https://jobs.lab', 'x-forwarded-host': 'jobs.lab', 'x-forwarded-proto': 'https' },
  ] as Record<string, string>[])('accepts a request from its own page: %j', async (headers) => {
    const { page } = await signIn(http, await http.token(newUser(), 'submitter'), '/v1/session', headers)
    const body = { kind: 'work' }
    expect((await http.call('POST', '/v1/jobs', { headers: { ...page, ...headers }, body })).status).toBe(201)
    expect((await http.call('DELETE', '/v1/session', { headers: { ...page, ...headers } })).status).toBe(204)
  })

  test('needs its own CSRF token to change anything', async () => {
    const user = newUser()
    const token = await http.token(user, 'submitter')
    const { cookie, page } = await signIn(http, token)
    const second = await signIn(http, token)
    const wrong = [
      [cookie, 'ichido-csrf is missing'],
      [{ ...cookie, 'ichido-csrf': '' }, 'ichido-csrf is wrong'],
      [{ ...cookie, 'ichido-csrf': 'x'.repeat(43) }, 'ichido-csrf is wrong'],
      // As many characters, but more bytes.
      [{ ...cookie, 'ichido-csrf': 'é'.repeat(43) }, 'ichido-csrf is wrong'],
      [{ ...cookie, 'ichido-csrf': second.page['ichido-csrf'] }, 'ichido-csrf is wrong'],
      [{ ...cookie, 'ichido-csrf': `${page['ichido-csrf']}x` }, 'ichido-csrf is wrong'],
    ] as const
    for (const [headers, problem] of wrong) {
      for (const [method, path] of [
        ['POST', '/v1/jobs'],
        ['DELETE', '/v1/session'],
      ] as const) {
        const answer = await http.call(method, path, { headers, body: { kind: 'work' } })
        expect([answer.status, errorOf(answer)]).toEqual([
          403,
          expect.objectContaining({ code: 'CSRF_REFUSED', message: expect.stringContaining(problem) }),
        ])
      }
    }
    const { store } = http.services.deps
    expect(await sql(store, 'SELECT id FROM ichido.jobs WHERE user_id = $1', user)).toEqual([])
    expect((await http.call('POST', '/v1/jobs', { headers: page, body: { kind: 'work' } })).status).toBe(201)
  })

  test('a token in a header counts before the cookie', async () => {
    const { cookie } = await signIn(http, await http.token(newUser(), 'viewer'))
    const [ann, bob] = [newUser(), newUser()]
    const token = await http.token(ann, 'submitter')
    const answer = await http.call('POST', '/v1/jobs', { headers: cookie, token, body: { kind: 'work' } })
    expect([answer.status, await ownerOf(answer)]).toEqual([201, ann])
    const apiKey = { ...cookie, 'x-api-key': await http.token(bob, 'viewer') }
    expect((await http.call('GET', '/v1/session', { headers: apiKey })).body).toMatchObject({ user_id: bob })
    const wrong = await http.call('GET', '/v1/session', { headers: { ...cookie, ...from() }, token: 'wrong' })
    expect(wrong.status).toBe(401)
  })

  const ENDS: [string, (tokenId: string, session: SignedIn) => Promise<unknown>][] = [
    ['its token is revoked', (tokenId) => http.services.access.revokeToken(LOCAL_ADMIN, tokenId)],
    ['its token expires', (tokenId) => set('api_tokens', tokenId)],
    ['its time is over', (tokenId) => set('sessions', tokenId)],
    ['its user signs out', (_, { page }) => http.call('DELETE', '/v1/session', { headers: page })],
  ]
  const set = (table: string, tokenId: string) =>
    sql(http.services.deps.store, `UPDATE ichido.${table} SET expires_at = now_ms() WHERE token_id = $1`, tokenId)
  test.each(ENDS)('is over at every node when %s', async (_, end) => {
    const made = await http.services.access.createToken(LOCAL_ADMIN, {
      userId: newUser(),
      role: 'admin',
      name: '',
      ttlSeconds: 3_600,
    })
    const session = await signIn(http, made.token)
    for (const node of [http, other]) {
      expect((await node.call('GET', '/v1/jobs', { headers: session.cookie })).status).toBe(200)
    }
    await end(made.token_id, session)
    elapsedMs += 1_000
    for (const node of [http, other]) {
      for (const [method, path] of [
        ['GET', '/v1/jobs'],
        ['GET', '/v1/session'],
        ['GET', '/metrics'],
        ['POST', '/v1/jobs'],
      ] as const) {
        const call: Call = {
          headers: { ...session.page, ...from() },
          body: method === 'POST' ? { kind: 'work' } : undefined,
        }
        const answer = await node.call(method, path, call)
        expect([path, answer.status, setCookieOf(answer)]).toEqual([path, 401, expect.stringContaining('Max-Age=0')])
        expect(errorOf(answer).message).toMatch(/session has expired.*sign in again/)
      }
    }
  })

  test('signing out is idempotent, at two nodes at once, and without a session', async () => {
    const { page } = await signIn(http, await http.token(newUser(), 'viewer'))
    const outs = await Promise.all(
      [http, other, http].map((node) => node.call('DELETE', '/v1/session', { headers: page })),
    )
    for (const out of [...outs, await http.call('DELETE', '/v1/session', {})]) {
      expect([out.status, out.text, setCookieOf(out)]).toEqual([
        204,
        '',
        expect.stringContaining('=; Path=/; Max-Age=0'),
      ])
    }
    expect((await other.call('GET', '/v1/jobs', { headers: { ...page, ...from() } })).status).toBe(401)
  })

  test('is nothing to the routes of workers', async () => {
    const { page } = await signIn(http, await http.token(newUser(), 'admin'))
    for (const path of ['/v1/leases', '/v1/leases/heartbeat', '/v1/workers/renew', '/calc/zpe/compute/jobs/lease']) {
      const answer = await http.call('POST', path, { headers: page, body: {} })
      expect([path, answer.status, answer.text]).toEqual([path, 401, expect.stringContaining('Send a worker token')])
    }
  })

  test('only an API token signs in, and others are told why', async () => {
    const { worker_token } = await registered(http.services)
    const owner = newUser()
    const token = await http.token(owner, 'submitter')
    const job = await http.call('POST', '/v1/jobs', { token, body: { kind: 'work' } })
    const { job_id } = job.body as { job_id: string }
    const stream = await http.call('POST', `/v1/jobs/${job_id}/stream-token`, { token })
    const refused: [unknown, number, RegExp][] = [
      [worker_token, 401, /A worker token cannot sign in/],
      [(stream.body as { token: string }).token, 401, /A stream token cannot sign in/],
      ['ichido_unknown', 401, /unknown, expired or revoked/],
      [(await signIn(http, token)).secret, 401, /unknown, expired or revoked/],
      ['', 400, /token/],
      [undefined, 400, /token/],
      [7, 400, /token/],
    ]
    for (const [given, status, problem] of refused) {
      const answer = await http.call('POST', '/v1/session', { body: { token: given }, headers: from() })
      expect([answer.status, errorOf(answer).message]).toEqual([status, expect.stringMatching(problem)])
      expect(answer.headers['set-cookie']).toBeUndefined()
    }
  })

  test('failed sign-ins and unknown cookies are limited by address, and a valid token is not', async () => {
    const token = await http.token(newUser(), 'viewer')
    const fails: ((headers: Record<string, string>) => Promise<Answer>)[] = [
      (headers) => http.call('POST', '/v1/session', { body: { token: 'wrong' }, headers }),
      (headers) => http.call('GET', '/v1/jobs', { headers: { ...headers, cookie: 'ichido-session=unknown' } }),
    ]
    for (const fail of fails) {
      const headers = from()
      for (let i = 0; i < FAILURES_MAX; i++) expect((await fail(headers)).status).toBe(401)
      expect(await fail(headers)).toMatchObject({ status: 429, headers: { 'retry-after': '60' } })
      await signIn(http, token, '/v1/session', headers)
    }
  })

  test('no cache may keep an answer, with a session as with any token, or a refusal', async () => {
    const token = await http.token(newUser(), 'admin')
    const { cookie, page } = await signIn(http, token)
    const body = { kind: 'work' }
    const answers = [
      await http.call('POST', '/v1/jobs', { headers: page, body }),
      await http.call('POST', '/v1/jobs', { token, body }),
      await http.call('GET', '/v1/jobs', { headers: { 'x-api-key': token } }),
      await http.call('GET', '/v1/jobs/none', { headers: cookie }),
      await http.call('GET', '/v1/jobs', { headers: from() }),
    ]
    for (const path of ['/v1/jobs', '/v1/session', '/v1/audit', '/v1/system', '/metrics']) {
      answers.push(await http.call('GET', path, { headers: cookie }))
    }
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 200, 404, 401, 200, 200, 200, 200, 200])
    expect(answers.filter(({ headers }) => headers['cache-control'] !== 'no-store')).toEqual([])
  })

  test('the log has neither cookies nor tokens', async () => {
    const token = await http.token(newUser(), 'viewer')
    const { cookie, page, secret } = await signIn(http, token)
    await http.call('POST', '/v1/jobs', { headers: cookie, body: { kind: 'work' } })
    await http.call('GET', '/v1/jobs', { headers: { ...page, origin: 'https://evil.example' } })
    await http.call('DELETE', '/v1/session', { headers: page })
    await http.call('GET', '/v1/jobs', { headers: { ...page, ...from() } })
    await http.call('POST', '/v1/session', { body: { token: `${token}x` }, headers: from() })
    await http.call('POST', '/v1/session', { body: { token, more: token }, headers: from() })
    const log = logged.join('')
    expect(log).toContain('CSRF_REFUSED')
    expect(log).toContain('sign in again')
    for (const text of [token, secret, page['ichido-csrf']]) expect(log).not.toContain(text)
  })
})
