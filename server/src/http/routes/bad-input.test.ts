import { gzipSync } from 'node:zlib'
import { ERRORS, type ErrorBody } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'

const JOBS = '/v1/jobs'
const inDays = (days: number) => new Date(Date.now() + days * 86_400_000).toISOString()
const key = (value: string): Call => ({ body: { kind: 'work' }, headers: { 'idempotency-key': value } })
const job = (fields: object): Call => ({ body: { kind: 'work', ...fields } })
const raw = (body: string | Buffer): Call => ({ body })

/** The body of POST /v1/jobs, the words of the refusal, and the field that it names. */
const REFUSED: Record<string, [Call, number, string | RegExp, string?]> = {
  'an empty key': [key(''), 400, 'Idempotency-Key must not be empty'],
  'an empty quoted key': [key('""'), 400, 'Idempotency-Key must not be empty'],
  'a key of 257 characters': [key('k'.repeat(257)), 400, 'Idempotency-Key must have at most 256 characters, has 257'],
  'a key with a tab': [key('a\tb'), 400, /Idempotency-Key must be visible ASCII.*character 2/],
  'a key with a space': [key('a b'), 400, /Idempotency-Key must be visible ASCII/],
  'a key with an open quote': [key('"abc'), 400, /Idempotency-Key has an opening quote/],
  'a key with parameters': [key('"k-2"; a=b'), 400, 'Idempotency-Key has characters after its closing quote'],
  'an empty key in the body': [job({ idempotency_key: '' }), 400, 'idempotency_key must not be empty'],
  'a long key in the body': [job({ idempotency_key: 'k'.repeat(257) }), 400, /^idempotency_key .*256 characters/],
  'a control character in the key in the body': [
    job({ idempotency_key: 'a\u0007b' }),
    400,
    /^idempotency_key must be visible/,
  ],
  'a key that is no string': [job({ idempotency_key: 7 }), 400, 'idempotency_key must be a string'],
  'no body': [{}, 400, 'Missing required field: kind'],
  'an empty body': [raw(''), 400, 'Missing required field: kind'],
  'an empty object': [{ body: {} }, 400, 'Missing required field: kind'],
  'a null': [raw('null'), 400, 'The body must be a JSON object'],
  'a list': [raw('[]'), 400, 'The body must be a JSON object'],
  'a string': [raw('"work"'), 400, 'The body must be a JSON object'],
  'half a JSON text': [raw('{"kind": "work"'), 400, /^The body is not valid JSON/],
  'a trailing comma': [raw('{"kind": "work",}'), 400, /^The body is not valid JSON/],
  'invalid UTF-8': [raw(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x7d])), 400, 'The body is not valid UTF-8'],
  'an unknown field': [job({ prority: 1 }), 400, 'Unknown field: prority'],
  'an unknown field inside': [job({ backoff: { max: 1 } }), 400, 'Unknown field: backoff.max'],
  'a kind that is no string': [{ body: { kind: 7 } }, 400, 'kind must be a string'],
  'a kind that is null': [{ body: { kind: null } }, 400, 'kind must be a string'],
  'a kind with a space': [{ body: { kind: 'a b' } }, 400, /^kind must be 1 to 128 letters/],
  'a long kind': [{ body: { kind: 'k'.repeat(129) } }, 400, /^kind must be 1 to 128 letters/],
  'a queue that is a list': [job({ queue: [] }), 400, 'queue must be a string'],
  'a priority that is no integer': [job({ priority: 1.5 }), 400, 'priority must be a whole number'],
  'a priority that is too high': [job({ priority: 1001 }), 400, 'priority must be at most 1000'],
  'a jitter above 1': [job({ backoff: { jitter: 2 } }), 400, 'backoff.jitter must be at most 1'],
  'labels that are a list': [job({ labels: [] }), 400, 'labels must be a JSON object'],
  'a label that is a number': [job({ labels: { a: 1 } }), 400, 'labels.a must be a string'],
  'a label name with a space': [job({ labels: { 'a b': 'c' } }), 400, /^labels.a b has a name that is not allowed/],
  '33 labels': [
    job({ labels: Object.fromEntries([...Array(33)].map((_, i) => [`l${i}`, ''])) }),
    400,
    /^labels must have at most 32/,
  ],
  'a negative cost': [job({ estimated_cost: -1 }), 400, 'estimated_cost must be at least 0'],
  'a cost that is a string': [job({ estimated_cost: '1' }), 400, 'estimated_cost must be a number'],
  'a cost that is absurd': [job({ estimated_cost: 1e12 }), 400, /^estimated_cost must be at most/],
  'no attempts': [job({ max_attempts: 0 }), 400, 'max_attempts must be at least 1'],
  'a timeout of 0': [job({ timeout_seconds: 0 }), 400, 'timeout_seconds must be more than 0'],
  'a negative delay': [job({ delay_seconds: -1 }), 400, 'delay_seconds must be at least 0'],
  'a delay and a run_at': [
    job({ run_at: inDays(1), delay_seconds: 1 }),
    400,
    'run_at and delay_seconds exclude each other',
  ],
  'a run_at that is no instant': [job({ run_at: 'tomorrow' }), 400, /^run_at must be an ISO 8601 instant/],
  'a run_at without a time zone': [job({ run_at: '2031-01-01T00:00:00' }), 400, /^run_at must be an ISO 8601 instant/],
  'a run_at on the 31st of June': [job({ run_at: '2031-06-31T00:00:00Z' }), 400, /^run_at must be an ISO 8601 instant/],
  'a run_at in the past': [job({ run_at: inDays(-1) }), 400, 'run_at is in the past', 'run_at'],
  'a run_at in the year 9999': [
    job({ run_at: '9999-12-31T23:59:59Z' }),
    400,
    'run_at is more than 366 days ahead',
    'run_at',
  ],
  'a traceparent that is none': [job({ traceparent: 'x' }), 400, 'traceparent must be a W3C traceparent'],
  'a reservation that is no UUID': [job({ reservation_id: 'x' }), 400, 'reservation_id must be a UUID'],
  'a key that lives too long': [
    job({ idempotency_key: 'k', key_ttl_hours: 1e6 }),
    400,
    /^key_ttl_hours must be at most/,
  ],
  'JSON a million levels deep': [raw('['.repeat(1_000_000)), 400, /nested more than 64 levels/],
  'a payload 65 levels deep': [
    raw(`{"kind":"work","payload":${'['.repeat(64)}${']'.repeat(64)}}`),
    400,
    /^payload(\.0){63} is nested more than 64 levels deep$/,
    `payload${'.0'.repeat(63)}`,
  ],
  'NUL in a string': [
    raw('{"kind":"work","payload":{"note":"a\\u0000b"}}'),
    400,
    'payload.note has a NUL character in a string',
    'payload.note',
  ],
  'NUL in a name': [
    raw('{"kind":"work","payload":[{"\\u0000":1}]}'),
    400,
    'payload.0 has a NUL character in a name',
    'payload.0',
  ],
  'half of a surrogate pair': [
    raw('{"kind":"work","payload":"\\ud800"}'),
    400,
    'payload has half of a surrogate pair in a string',
    'payload',
  ],
  __proto__: [
    raw('{"kind":"work","payload":{"__proto__":{"a":1}}}'),
    400,
    'payload.__proto__ has a name that is not allowed',
    'payload.__proto__',
  ],
  'a member twice': [raw('{"kind":"work","payload":{"a":1,"a":2}}'), 400, 'payload.a occurs twice', 'payload.a'],
  'a member twice, once escaped': [
    raw('{"kind":"work","payload":{"a":1,"\\u0061":2}}'),
    400,
    'payload.a occurs twice',
    'payload.a',
  ],
  'a field twice': [raw('{"kind":"work","kind":"work"}'), 400, 'kind occurs twice', 'kind'],
  'an integer above 2^53': [
    raw('{"kind":"work","payload":{"ids":[1,9007199254740993]}}'),
    400,
    /^payload.ids.1 is the integer 9007199254740993, .*2\^53/,
    'payload.ids.1',
  ],
  'a number without end': [
    raw('{"kind":"work","payload":1e400}'),
    400,
    'payload is the number 1e400, which is too large',
    'payload',
  ],
  'a payload over the limit': [job({ payload: 'x'.repeat(1024 * 1024) }), 413, 'payload is larger than 1048576 bytes'],
  'a payload over the limit in bytes': [
    job({ payload: 'é'.repeat(550_000) }),
    413,
    'payload is larger than 1048576 bytes',
  ],
  'a body over the limit': [
    raw(' '.repeat((1024 + 128) * 1024 + 1)),
    413,
    'The request body is larger than 1179648 bytes',
  ],
  'a form': [
    { body: 'kind=work', headers: { 'content-type': 'application/x-www-form-urlencoded' } },
    415,
    /application\/json/,
  ],
  'a compressed body': [
    { body: gzipSync('{"kind":"work"}'), headers: { 'content-encoding': 'gzip' } },
    415,
    'Send the body as it is, without Content-Encoding',
  ],
  'no content type': [{ body: '{"kind":"work"}', headers: { 'content-type': '' } }, 415, /application\/json/],
}

const ERROR_CODES: Record<number, string> = {
  400: 'INVALID_PAYLOAD',
  413: 'PAYLOAD_TOO_LARGE',
  415: 'UNSUPPORTED_MEDIA_TYPE',
}

describe.each(ENGINES)('bad input on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  async function stored(): Promise<unknown> {
    const lists = await Promise.all(
      [JOBS, '/v1/idempotency-keys', '/v1/reservations'].map((path) => http.call('GET', path)),
    )
    return lists.map(({ body }) => body)
  }

  /** The refusal is clear and reveals nothing internal, and the server stays up. */
  function expectRefusal({ status, headers, body, text }: Answer, expected: number): ErrorBody['error'] {
    expect({ status, text }).toMatchObject({ status: expected })
    const { error } = body as ErrorBody
    expect(error.request_id).toBe(headers['x-request-id'])
    expect(headers['should-retry']).toBe('false')
    expect(headers['content-type']).toBe('application/json; charset=utf-8')
    expect(text).not.toMatch(/\bat [\w.<>]+ \(|node_modules|\.ts:|[Ee]rror:/)
    return error
  }

  test.each(Object.entries(REFUSED))('%s is refused and nothing is stored', async (_, [call, status, words, field]) => {
    const error = expectRefusal(await http.call('POST', JOBS, call), status)
    expect(error.code).toBe(ERROR_CODES[status])
    if (typeof words === 'string') expect(error.message).toBe(words)
    else expect(error.message).toMatch(words)
    if (field !== undefined) expect(error.details).toEqual({ field })
    expect(await stored()).toEqual(Array(3).fill({ data: [], next_cursor: null }))
  })

  test.each([
    ['/v1/workers/register', 413, 'The request body is larger than 65536 bytes'],
    ['/calc/zpe/compute/servers/register', 413, 'The request body is larger than 65536 bytes'],
    ['/v1/nothing', 404, 'There is no POST /v1/nothing'],
    ['/healthz', 405, /^POST is not allowed for this path/],
  ])('%s: a large body on a public route is not read', async (path, status, words) => {
    // Not JSON, so a server that parsed it would say so.
    const { message } = expectRefusal(await http.call('POST', path, raw('x'.repeat(65_537))), status)
    if (typeof words === 'string') expect(message).toBe(words)
    else expect(message).toMatch(words)
  })

  test.each([
    ['GET', '/v1/jobs?limit=0', 400, 'limit must be at least 1'],
    ['GET', '/v1/jobs?limit=201', 400, 'limit must be at most 200'],
    ['GET', '/v1/jobs?limit=x', 400, 'limit must be a number'],
    ['GET', '/v1/jobs?limit=1&limit=2', 400, 'limit must be a number'],
    ['GET', '/v1/jobs?sate=PENDING', 400, 'Unknown query parameter: sate'],
    ['GET', '/v1/jobs?state=PENDING,DONE', 400, /^state must be one of PENDING/],
    ['GET', '/v1/jobs?state=pending', 400, /^state must be one of PENDING/],
    ['GET', '/v1/jobs?queue=%00', 400, /^queue must be/],
    ['GET', '/v1/jobs?label=name', 400, 'label must be name:value'],
    ['GET', '/v1/jobs?label=a:%00', 400, 'label must be name:value'],
    ['GET', '/v1/jobs?key=%00', 400, /^key must be visible ASCII/],
    ['GET', '/v1/jobs?user_id=%00', 400, /^user_id must be/],
    ['GET', '/v1/jobs?created_after=yesterday', 400, /^created_after must be an ISO 8601 instant/],
    ['GET', '/v1/jobs?cursor=x', 400, /^cursor must be the next_cursor/],
    ['GET', `/v1/jobs?cursor=${Buffer.from('jobs:x').toString('base64url')}`, 400, /^cursor must be the next_cursor/],
    ['GET', '/v1/jobs/none', 404, /^There is no job "none": ids look like [0-9a-f-]{36}$/],
    ['DELETE', '/v1/workers/none', 404, /^There is no worker "none": ids look like/],
    ['GET', '/v1/jobs/%ff', 400, /percent-encoding/],
    ['GET', '/v1/jobs/%00', 404, /^There is no job/],
    ['GET', '/docs/static/%00', 404, ERRORS.NOT_FOUND.sentence],
    ['GET', '/docs/static/a%00.css', 404, ERRORS.NOT_FOUND.sentence],
    ['GET', '/docs/static//etc/passwd', 404, ERRORS.NOT_FOUND.sentence],
    ['GET', `/docs/static/${'a'.repeat(5_000)}`, 404, ERRORS.NOT_FOUND.sentence],
    ['GET', '/v1/jobs/01900000-0000-7000-8000-000000000000', 404, /^There is no job/],
    [
      'GET',
      '/v1/jobs/01900000-0000-7000-8000-000000000000/result?wait_seconds=51',
      400,
      'wait_seconds must be at most 50',
    ],
    ['POST', '/v1/jobs/01900000-0000-7000-8000-000000000000/cancel', 404, /^There is no job/],
    ['GET', '/v1/idempotency-keys/none', 404, 'There is no key "none"'],
    ['PATCH', '/v1/idempotency-keys/none', 400, 'Missing required field: ttl_hours'],
    ['GET', '/v1/quotas/a%00b', 404, 'user_id names no user'],
    ['POST', '/v1/reservations/01900000-0000-7000-8000-000000000000/consume', 400, 'Missing required field: job_id'],
    ['POST', '/v1/reservations/01900000-0000-7000-8000-000000000000/release', 404, /^There is no reservation/],
    ['DELETE', '/v1/tokens/01900000-0000-7000-8000-000000000000', 404, /^There is no token/],
    ['GET', '/v1/nothing', 404, 'There is no GET /v1/nothing'],
    ['PUT', '/v1/jobs', 405, 'PUT is not allowed for this path; it takes GET, HEAD, POST'],
  ])('%s %s is %i', async (method, path, status, words) => {
    const { message } = expectRefusal(await http.call(method, path), status)
    if (typeof words === 'string') expect(message).toBe(words)
    else expect(message).toMatch(words)
  })

  test('an empty body counts as no body, whatever its type', async () => {
    const path = '/v1/jobs/01900000-0000-7000-8000-000000000000/cancel'
    const form = { 'content-type': 'application/x-www-form-urlencoded' }
    expectRefusal(await http.call('POST', path, { body: '', headers: form }), 404)
    expectRefusal(await http.call('POST', path, { body: 'a=b', headers: form }), 415)
  })

  test.each([
    ['PUT', '/v1/quotas/ann', { max_concurrent: -1 }, 'max_concurrent must be at least 0'],
    ['PUT', '/v1/quotas/ann', { cost_limit: -0.5 }, 'cost_limit must be at least 0'],
    ['PUT', '/v1/quotas/ann', { period: 'week' }, 'period must be one of day, month'],
    ['POST', '/v1/reservations', { ttl_seconds: 0 }, 'ttl_seconds must be more than 0'],
    ['POST', '/v1/reservations', { ttl: 1 }, 'Unknown field: ttl'],
    ['POST', '/v1/tokens', { user_id: '*', role: 'admin' }, /^user_id must be/],
    ['POST', '/v1/tokens', { user_id: 'ann', role: 'root' }, 'role must be one of viewer, submitter, operator, admin'],
    ['POST', '/v1/jobs/batch', {}, 'Missing required field: jobs'],
    ['POST', '/v1/jobs/batch', { jobs: [] }, 'jobs must have at least 1 entry'],
    ['POST', '/v1/jobs/batch', { jobs: {} }, 'jobs must be a list'],
  ])('%s %s with %j is refused', async (method, path, body, words) => {
    const { message } = expectRefusal(await http.call(method, path, { body }), 400)
    if (typeof words === 'string') expect(message).toBe(words)
    else expect(message).toMatch(words)
    expect(await http.services.access.isAuthRequired()).toBe(false)
  })

  test('a batch with text that cannot be stored is refused, and names the job', async () => {
    const body = '{"jobs":[{"kind":"work"},{"kind":"work","payload":{"note":"\\u0000"}}]}'
    const { message, details } = expectRefusal(await http.call('POST', '/v1/jobs/batch', { body }), 400)
    expect(message).toBe('jobs.1.payload.note has a NUL character in a string')
    expect(details).toEqual({ field: 'jobs.1.payload.note' })
    expect(await stored()).toEqual(Array(3).fill({ data: [], next_cursor: null }))
  })

  test('a bad run_at in a batch is refused alone', async () => {
    const jobs = [{ kind: 'work', run_at: inDays(-1) }, {}]
    const { status, body } = await http.call('POST', '/v1/jobs/batch', { body: { jobs } })
    expect(status).toBe(200)
    expect(body).toMatchObject({ data: ['run_at', 'kind'].map((field) => ({ error: { details: { field } } })) })
  })

  test.each([257, 769])('a key of %i characters in a path is not found', async (length) => {
    expectRefusal(await http.call('GET', `/v1/idempotency-keys/${'k'.repeat(length)}`), 404)
  })

  test('the server is up after all of it', async () => {
    expect(await http.call('POST', JOBS, job({ payload: { fine: true } }))).toMatchObject({ status: 201 })
  })
})
