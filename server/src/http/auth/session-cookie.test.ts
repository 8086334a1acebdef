import type { ErrorBody } from '@ichido/sdk/protocol'
import { describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { testApp } from '../../testing/http/app.ts'
import { selfSigned } from '../../testing/http/certificate.ts'
import { setCookieOf, signIn } from '../../testing/http/sessions.ts'

const TWELVE_HOURS_SECONDS = 12 * 3600

describe('the cookie', () => {
  test.each<[string, Parameters<typeof testApp>[1] & object, string, string]>([
    ['plain HTTP', {}, 'ichido-session', 'Path=/'],
    ['plain HTTP under a base path', { basePath: '/jobs' }, 'ichido-session', 'Path=/jobs'],
    ['TLS', { tls: selfSigned() }, '__Host-ichido-session', 'Path=/'],
    ['a public https URL', { publicUrl: 'https://jobs.lab' }, '__Host-ichido-session', 'Path=/'],
    ['a public http URL', { publicUrl: 'http://jobs.lab' }, 'ichido-session', 'Path=/'],
    ['TLS under a base path', { tls: selfSigned(), basePath: '/a/b' }, '__Secure-ichido-session', 'Path=/a/b'],
  ])('over %s has the attributes that are valid there', async (_, changes, name, path) => {
    const http = await testApp('sqlite', { openMode: false, ...changes })
    const { basePath = '' } = changes
    const answer = await http.call('POST', `${basePath}/v1/session`, {
      body: { token: await http.token('ann', 'viewer') },
    })
    const [pair = '', ...attributes] = setCookieOf(answer).split('; ')
    expect(pair).toMatch(new RegExp(`^${name}=[\\w-]{43}$`))
    const secure = name.startsWith('__') ? ['Secure'] : []
    expect(answer.headers['cache-control']).toBe('no-store')
    expect(attributes).toEqual([path, expect.stringMatching(/^Max-Age=\d+$/), 'HttpOnly', 'SameSite=Strict', ...secure])
    const maxAge = Number(attributes[1]?.slice('Max-Age='.length))
    expect(maxAge).toBeLessThanOrEqual(TWELVE_HOURS_SECONDS)
    expect(maxAge).toBeGreaterThan(TWELVE_HOURS_SECONDS - 60)
    expect(await http.call('GET', `${basePath}/v1/session`, { headers: { cookie: pair } })).toMatchObject({
      status: 200,
    })
    // A cookie without the prefix may be from an insecure page.
    const bare = { cookie: pair.replace(/^__\w+-/, '') }
    expect((await http.call('GET', `${basePath}/v1/session`, { headers: bare })).status).toBe(secure.length ? 401 : 200)
    const out = await http.call('DELETE', `${basePath}/v1/session`, {})
    expect(setCookieOf(out)).toBe([`${name}=`, path, 'Max-Age=0', 'HttpOnly', 'SameSite=Strict', ...secure].join('; '))
    await http.close()
  })

  test('does not outlive a token that ends sooner', async () => {
    const http = await testApp('sqlite')
    const { token } = await http.services.access.createToken(LOCAL_ADMIN, {
      userId: 'ann',
      role: 'viewer',
      name: '',
      ttlSeconds: 60,
    })
    const answer = await http.call('POST', '/v1/session', { body: { token } })
    expect(Number(/Max-Age=(\d+)/.exec(setCookieOf(answer))?.[1])).toBeLessThanOrEqual(60)
    await http.close()
  })
})

describe('a session behind PUBLIC_URL', () => {
  test('works on the pages of that URL, and of the address itself', async () => {
    const http = await testApp('sqlite', { openMode: false, publicUrl: 'https://jobs.lab/x', basePath: '/x' })
    const token = await http.token('ann', 'submitter')
    for (const [origin, status] of [
      ['https://jobs.lab', 201],
      ['http://localhost:8001', 201],
      ['http://jobs.lab', 403],
      ['https://jobs.lab.evil.example', 403],
    ] as const) {
      const { page } = await signIn(http, token, '/x/v1/session')
      const answer = await http.call('POST', '/x/v1/jobs', { headers: { ...page, origin }, body: { kind: 'work' } })
      expect([origin, answer.status]).toEqual([origin, status])
    }
    await http.close()
  })
})

describe('open mode', () => {
  test('ignores and clears a cookie of another server, until there is a token', async () => {
    const http = await testApp('sqlite')
    const url = await http.app.listen({ host: '127.0.0.1', port: 0 })
    const headers = { cookie: 'ichido-session=of-another-server' }
    const open = { user_id: 'local', role: 'admin', expires_at: null, csrf_token: null, open: true }
    expect((await http.call('GET', '/v1/session')).body).toMatchObject(open)
    const stale = await http.call('GET', '/v1/session', { headers })
    expect([stale.status, stale.body, setCookieOf(stale)]).toEqual([
      200,
      expect.objectContaining(open),
      'ichido-session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict',
    ])
    const submit = {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json' },
      body: '{"kind":"work"}',
    }
    const submitted = await fetch(`${url}/v1/jobs`, submit)
    expect([submitted.status, submitted.headers.get('set-cookie')]).toEqual([201, setCookieOf(stale)])
    // The rules of open mode hold.
    const evil = await http.call('GET', '/v1/session', { headers: { ...headers, origin: 'https://evil.example' } })
    expect((evil.body as ErrorBody).error.code).toBe('OPEN_MODE_REFUSED')
    expect((await http.call('POST', '/v1/session', { body: { token: 'any' } })).status).toBe(401)

    const token = await http.token('ann', 'viewer')
    expect((await http.call('GET', '/v1/session', { headers })).status).toBe(401)
    expect((await http.call('GET', '/v1/session')).status).toBe(401)
    const { cookie } = await signIn(http, token)
    expect((await http.call('GET', '/v1/session', { headers: cookie })).body).toMatchObject({
      user_id: 'ann',
      open: false,
    })
    await http.close()
  })
})
