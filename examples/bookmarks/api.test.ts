import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { type App, startApp } from './app.ts'
import type { BookmarkShape } from './shapes.ts'

const WAIT = { timeout: 20_000, interval: 20 }
const TEXT = 'The great auk was a flightless bird of the North Atlantic that died out in the 19th century.'
const user = () => ({ 'x-user': `user-${randomUUID()}` })

let site: Server
let siteUrl: string
let folder: string
let app: App
const troubles: unknown[] = []
/** Paths whose answer is held back, with the function that releases it. */
const held = new Map<string, () => void>()
const failing = new Set<string>()
const visits: string[] = []

beforeAll(async () => {
  site = createServer(async (request, response) => {
    const path = request.url ?? ''
    visits.push(path)
    if (path.startsWith('/held')) await new Promise<void>((resolve) => held.set(path, resolve))
    if (failing.has(path)) return void response.writeHead(503).end()
    response.setHeader('content-type', 'text/html').end(`<title>${path}</title><main><p>${TEXT}</p></main>`)
  })
  await once(site.listen(0, '127.0.0.1'), 'listening')
  siteUrl = `http://site.test:${(site.address() as AddressInfo).port}`
})
afterAll(() => {
  site.closeAllConnections()
  site.close()
})

const start = () =>
  startApp({
    folder,
    port: 0,
    files: new Map(),
    retryBaseSeconds: 0.02,
    userOf: ({ headers }) => String(headers['x-user']),
    network: { resolve: async () => ['127.0.0.1'], allows: (address) => address === '127.0.0.1' },
    onTrouble: (error) => troubles.push(error),
  })

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'bookmarks-'))
  app = await start()
})
afterAll(async () => {
  await app.close()
  rmSync(folder, { recursive: true })
  expect(troubles).toEqual([])
})

type Headers = Record<string, string>

function post(path: string, headers: Headers, body?: unknown): Promise<Response> {
  const json = { 'content-type': 'application/json', ...headers }
  return fetch(app.url + path, {
    method: 'POST',
    headers: json,
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
}

const save = (url: string, headers: Headers, rest: object = {}) =>
  post('/v1/bookmarks', { 'idempotency-key': randomUUID(), ...headers }, { url, created_from: 'web', ...rest })

async function get<T>(path: string, headers: Headers): Promise<T> {
  return (await fetch(app.url + path, { headers })).json() as Promise<T>
}
const list = async (headers: Headers) => (await get<{ data: BookmarkShape[] }>('/v1/bookmarks', headers)).data

const hasStatus = (headers: Headers, status: BookmarkShape['llm_status']) =>
  vi.waitFor(async () => {
    const [bookmark] = await list(headers)
    expect(bookmark?.llm_status).toBe(status)
    return bookmark as BookmarkShape
  }, WAIT)

test('a saved page is fetched, read and summarised', async () => {
  const me = user()
  const answer = await save(`${siteUrl}/auk`, me, { source_hint: 'article' })
  expect(answer.status).toBe(201)
  const bookmark = await answer.json()
  expect(bookmark).toMatchObject({
    url: `${siteUrl}/auk`,
    source_hint: 'article',
    llm_status: 'processing',
    summary: null,
  })
  expect(await hasStatus(me, 'done')).toMatchObject({ id: bookmark.id, title: '/auk', summary: TEXT, error: null })
  expect(await list(user())).toEqual([])
  expect((await fetch(`${app.url}/v1/bookmarks/${bookmark.id}`, { headers: user() })).status).toBe(404)
})

test('a bad request gets the name of the wrong field, and changes nothing', async () => {
  const me = user()
  const key = () => ({ 'idempotency-key': randomUUID(), ...me })
  const good = { url: `${siteUrl}/a`, created_from: 'web' }
  const cases: [Headers, unknown, number, string][] = [
    [me, good, 400, 'Missing required header: Idempotency-Key'],
    [{ ...me, 'idempotency-key': 'a b' }, good, 400, 'Idempotency-Key'],
    [{ ...me, 'idempotency-key': 'k'.repeat(300) }, good, 400, 'Idempotency-Key'],
    [key(), { created_from: 'web' }, 400, 'Missing required field: url'],
    [key(), { url: good.url }, 400, 'Missing required field: created_from'],
    [key(), { ...good, created_from: 'fax' }, 400, 'created_from: '],
    [key(), { ...good, url: 'javascript:alert(1)' }, 400, 'url must begin with http:// or https://'],
    [key(), { ...good, url: 'https://me:pw@example.org/' }, 400, 'url must have no name or password'],
    [key(), { ...good, source_hint: '' }, 400, 'source_hint'],
    [key(), { ...good, more: 1 }, 400, 'more'],
    [key(), [good], 400, 'object'],
    [{ ...key(), 'content-type': 'text/plain' }, good, 415, 'application/json'],
    [key(), { ...good, source_hint: 'x'.repeat(20_000) }, 413, 'larger'],
    [{ ...key(), origin: 'https://evil.example' }, good, 403, 'other sites'],
  ]
  for (const [headers, body, status, words] of cases) {
    const answer = await post('/v1/bookmarks', headers, body)
    const { error } = await answer.json()
    expect([answer.status, error.message]).toEqual([status, expect.stringContaining(words)])
  }
  expect(await list(me)).toEqual([])
  expect((await fetch(`${app.url}/v1/bookmarks?limit=0`, { headers: me })).status).toBe(400)
  expect((await fetch(`${app.url}/v1/bookmarks?cursor=x`, { headers: me })).status).toBe(400)
  expect((await post(`/v1/bookmarks/${randomUUID()}/reprocess`, me)).status).toBe(404)
})

test('a key gives one bookmark, a page gives one, and a reused key is refused', async () => {
  const me = { ...user(), 'idempotency-key': `k-${randomUUID()}` }
  const answers = await Promise.all(Array.from({ length: 8 }, () => save(`${siteUrl}/one`, me)))
  expect(answers.map(({ status }) => status)).toEqual(Array(8).fill(201))
  expect(answers.filter(({ headers }) => headers.get('idempotent-replayed') === 'true')).toHaveLength(7)
  expect(new Set(await Promise.all(answers.map((answer) => answer.text()))).size).toBe(1)

  const spelled = siteUrl.replace('http://site.test', 'HTTP://Site.Test.')
  const again = await save(`${spelled}/one?utm_source=mail#top`, { 'x-user': me['x-user'] })
  const [bookmark, ...others] = await list(me)
  expect([again.status, (await again.json()).id, others]).toEqual([200, bookmark?.id, []])

  const other = await save(`${siteUrl}/two`, me)
  expect([other.status, (await other.json()).error.code]).toEqual([409, 'IDEMPOTENCY_KEY_REUSED'])
  await hasStatus(me, 'done')
  expect(visits.filter((path) => path.startsWith('/one'))).toEqual(['/one'])
})

test('a failure is retried, then becomes a failed job, which the user can retry', async () => {
  const me = user()
  failing.add('/down')
  await save(`${siteUrl}/down`, { ...me, 'idempotency-key': 'k-down' })
  const failed = await hasStatus(me, 'failed')
  const error = { code: 'PAGE_UNAVAILABLE', message: 'The page answered 503', retryable: true }
  expect(failed.error).toEqual(error)
  expect(visits.filter((path) => path === '/down')).toHaveLength(3)
  const { data } = await get<{ data: unknown[] }>('/v1/failed-jobs', me)
  expect(data).toEqual([
    {
      id: failed.job_id,
      bookmark_id: failed.id,
      job_type: 'fetch',
      error_message: error.message,
      payload: {
        bookmark_id: failed.id,
        attempt: 3,
        max_attempts: 3,
        original_request: { url: `${siteUrl}/down`, idempotency_key: 'k-down' },
      },
      failed_at: expect.any(String),
      retryable: true,
    },
  ])
  failing.delete('/down')
  const again = await post(`/v1/bookmarks/${failed.id}/reprocess`, me)
  expect([again.status, (await again.json()).llm_status]).toEqual([202, 'retrying'])
  expect(await hasStatus(me, 'done')).toMatchObject({ id: failed.id, summary: TEXT, error: null })
  expect((await get<{ data: unknown[] }>('/v1/failed-jobs', me)).data).toEqual([])
})

test('a failure that no retry can fix is tried once', async () => {
  const me = user()
  await save('http://[::1]:8080/', me)
  expect((await hasStatus(me, 'failed')).error).toMatchObject({ code: 'ADDRESS_REFUSED', retryable: false })
})

test('reprocessing during processing returns the running job', async () => {
  const me = user()
  const { id } = await (await save(`${siteUrl}/held`, me)).json()
  await vi.waitFor(() => expect(held.has('/held')).toBe(true), WAIT)
  const [running] = await list(me)
  expect(running).toMatchObject({ llm_status: 'processing', step: 'fetch', job_id: expect.any(String) })
  for (let i = 0; i < 3; i++) {
    const answer = await post(`/v1/bookmarks/${id}/reprocess`, me)
    expect(answer.status).toBe(202)
    expect(await answer.json()).toEqual(running)
  }
  held.get('/held')?.()
  await hasStatus(me, 'done')
  expect(visits.filter((path) => path === '/held')).toHaveLength(1)
})

/** Restarts the application with changes to its database, as a crash at a bad moment would leave them. */
async function restart(meanwhile: (database: DatabaseSync) => void): Promise<void> {
  await app.close()
  const database = new DatabaseSync(join(folder, 'bookmarks.db'))
  meanwhile(database)
  database.close()
  app = await start()
}

function insert(database: DatabaseSync, userId: string, path: string, jobId: string | null): void {
  database
    .prepare(
      `INSERT INTO bookmarks (id, user_id, url, normal_url, created_from, idempotency_key, created_at, llm_status, job_id)
       VALUES (?, ?, :url, :url, 'web', 'k', 1, 'processing', :jobId)`,
    )
    .run({ url: siteUrl + path, jobId }, randomUUID(), userId)
}

test('the next start repairs a crash between bookmark and job, or during the job', async () => {
  const me = user()
  await save(`${siteUrl}/held-over`, me)
  await vi.waitFor(() => expect(held.has('/held-over')).toBe(true), WAIT)
  held.delete('/held-over')
  const [was] = await list(me)
  await restart((database) => {
    // One crash came after the commit of a bookmark, the other between the submission of a job and the record of its id.
    insert(database, me['x-user'], '/left', null)
    database.prepare('UPDATE bookmarks SET job_id = NULL WHERE id = ?').run(was?.id ?? '')
  })
  await vi.waitFor(() => expect(held.has('/held-over')).toBe(true), WAIT)
  held.get('/held-over')?.()
  await vi.waitFor(async () => {
    const now = (await list(me)).map(({ url, llm_status }) => [url, llm_status])
    expect(now).toEqual(['/left', '/held-over'].map((path) => [siteUrl + path, 'done']))
  }, WAIT)
  expect((await list(me)).at(-1)?.job_id).toBe(was?.job_id)
  expect(visits.filter((path) => path === '/held-over')).toHaveLength(2)
})

test('a job that was deleted is created again', async () => {
  const me = user()
  await restart((database) => insert(database, me['x-user'], '/lost', randomUUID()))
  expect(await hasStatus(me, 'done')).toMatchObject({ summary: TEXT })
})

test('a change is sent to the pages of its user while it happens', async () => {
  const [me, other] = [user(), user()]
  const stop = new AbortController()
  const stream = await fetch(`${app.url}/v1/bookmarks/events`, { headers: me, signal: stop.signal })
  await save(`${siteUrl}/other`, other)
  await hasStatus(other, 'done')
  await save(`${siteUrl}/mine`, me)
  let heard = ''
  for await (const text of stream.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    heard += text
    if (heard.includes('"llm_status":"done"')) break
  }
  expect(heard).toContain('"step":"llm_processing"')
  expect(heard).not.toContain('/other')
})
