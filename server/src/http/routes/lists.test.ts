import type {
  ErrorBody,
  JobShape,
  Page,
  QuotaShape,
  ReservationShape,
  SubmitRequest,
  SubmitResponse,
  UserShape,
} from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'

describe.each(ENGINES)('lists on %s', (engine) => {
  let http: TestApp
  beforeAll(async () => {
    http = await testApp(engine)
  })
  afterAll(() => http.close())

  async function submit(request: SubmitRequest): Promise<string> {
    const { body } = await http.call('POST', '/v1/jobs', { body: request })
    return (body as SubmitResponse).job_id
  }

  async function read<T>(path: string): Promise<Page<T>> {
    const answer = await http.call('GET', path)
    expect(answer).toMatchObject({ status: 200 })
    return answer.body as Page<T>
  }

  const ids = async (path: string) => (await read<JobShape>(path)).data.map(({ job_id }) => job_id)

  /** Reads all pages; `between` runs after each. */
  async function walk(path: string, between: () => Promise<unknown> = async () => {}): Promise<string[]> {
    const found: string[] = []
    let cursor: string | null = ''
    while (cursor !== null) {
      const page: Page<JobShape> = await read(`${path}${cursor === '' ? '' : `&cursor=${cursor}`}`)
      found.push(...page.data.map(({ job_id }) => job_id))
      cursor = page.next_cursor
      await between()
    }
    return found
  }

  test('pages are complete, newest first, and stable during changes', async () => {
    const made: string[] = []
    for (let i = 0; i < 25; i++) made.push(await submit({ kind: 'page', queue: 'paging' }))
    made.reverse()
    expect(await walk('/v1/jobs?queue=paging&limit=7')).toEqual(made)
    expect(await walk('/v1/jobs?queue=paging&limit=25')).toEqual(made)
    let n = 0
    const meanwhile = async () => {
      await submit({ kind: 'page', queue: 'paging' })
      await http.call('POST', `/v1/jobs/${made[n++]}/cancel`)
    }
    expect(await walk('/v1/jobs?queue=paging&limit=4', meanwhile)).toEqual(made)
  })

  test('jobs are found by text and by the time they wait, and counted by the same filter', async () => {
    const one = await submit({ kind: 'find', queue: 'finding', labels: { city: 'Kyoto' } })
    await submit({ kind: 'find', queue: 'finding', payload: { city: 'Nara' } })
    expect(await ids('/v1/jobs?queue=finding&text=KYO')).toEqual([one])
    expect(await ids('/v1/jobs?queue=finding&waiting_longer_than_seconds=3600')).toEqual([])
    expect(await ids('/v1/jobs?queue=finding&waiting_longer_than_seconds=1.1')).toEqual([])
    expect(await ids('/v1/jobs?queue=finding&error_code=X')).toEqual([])
    const counts = async (filter: string) => (await http.call('GET', `/v1/jobs/counts?queue=finding${filter}`)).body
    expect(await counts('')).toMatchObject({
      total: 2,
      capped: false,
      by_state: { PENDING: { count: 2, capped: false } },
    })
    expect(await counts('&text=nara&state=PENDING')).toEqual({
      total: 1,
      capped: false,
      by_state: { PENDING: { count: 1, capped: false } },
    })
  })

  test('a short id finds its job in any state, and no other', async () => {
    const one = await submit({ kind: 'short', queue: 'short' })
    const other = await submit({ kind: 'short', queue: 'short' })
    await http.call('POST', `/v1/jobs/${one}/cancel`)
    const short = (id: string, dots = '…') => encodeURIComponent(`${id.slice(0, 13)}${dots}${id.slice(-4)}`)
    for (const id of [one, other]) {
      expect(await ids(`/v1/jobs?short_id=${short(id)}`)).toEqual([id])
      expect(await ids(`/v1/jobs?queue=short&short_id=${short(id.toUpperCase(), '...')}`)).toEqual([id])
    }
    expect(await ids(`/v1/jobs?state=CANCELED&short_id=${short(one)}`)).toEqual([one])
    expect(await ids(`/v1/jobs?state=CANCELED&short_id=${short(other)}`)).toEqual([])
    const absent = `${one.slice(0, -4)}${one.endsWith('0000') ? '0001' : '0000'}`
    expect(await ids(`/v1/jobs?short_id=${short(absent)}`)).toEqual([])
  })

  test.each([
    ['state', 'DONE'],
    ['text', ''],
    ['text', 'x'.repeat(257)],
    ['text', '%00'],
    ['short_id', '01990f3a…1d07'],
    ['short_id', '01990f3a-7c1e…%251d'],
    ['short_id', '01990f3a-7c1e…'],
    ['error_code', ''],
    ['error_code', '%00'],
    ['waiting_longer_than_seconds', '-1'],
    ['waiting_longer_than_seconds', 'soon'],
    ['created_after', 'today'],
    ['label', 'x'],
  ])('a wrong filter names its field: %s', async (field, value) => {
    for (const path of ['/v1/jobs', '/v1/jobs/counts']) {
      const { status, body } = await http.call('GET', `${path}?${field}=${value}`)
      expect([status, (body as ErrorBody).error.details.field]).toEqual([400, field])
    }
  })

  test.each(['error_code', 'text'])('a dead letter has no NUL in its %s', async (field) => {
    for (const path of ['/v1/dead-letters', '/v1/dead-letters/groups']) {
      const { status, body } = await http.call('GET', `${path}?${field}=%00`)
      expect([status, (body as ErrorBody).error.details.field]).toEqual([400, field])
    }
  })

  test('a cursor of another list is refused, and an empty list has no cursor', async () => {
    const { next_cursor } = await read('/v1/jobs?queue=paging&limit=1')
    expect(next_cursor).toMatch(/^[\w-]+$/)
    expect(await http.call('GET', `/v1/reservations?cursor=${next_cursor}`)).toMatchObject({ status: 400 })
    expect(await read('/v1/jobs?queue=empty')).toEqual({ data: [], next_cursor: null })
  })

  test('filters by state, queue, kind, user, label, key and time, alone and together', async () => {
    const one = await submit({
      kind: 'f.a',
      queue: 'q1',
      labels: { team: 'red', 'build.id': 'x:y' },
      idempotency_key: 'ci/1',
    })
    const two = await submit({ kind: 'f.b', queue: 'q1', labels: { team: 'blue' } })
    const three = await submit({ kind: 'f.a', queue: 'q2', labels: { team: 'red' } })
    await http.call('POST', `/v1/jobs/${two}/cancel`)
    const { created_at } = (await http.call('GET', `/v1/jobs/${one}`)).body as JobShape

    expect(await ids('/v1/jobs?queue=q1')).toEqual([two, one])
    expect(await ids('/v1/jobs?kind=f.a')).toEqual([three, one])
    expect(await ids('/v1/jobs?kind=f.a&state=PENDING,CANCELED')).toEqual([three, one])
    expect(await ids('/v1/jobs?queue=q1&state=CANCELED')).toEqual([two])
    expect(await ids('/v1/jobs?queue=q1&state=RUNNING')).toEqual([])
    expect(await ids('/v1/jobs?label=team:red')).toEqual([three, one])
    expect(await ids('/v1/jobs?label=build.id:x:y')).toEqual([one])
    expect(await ids('/v1/jobs?label=team:red&queue=q2')).toEqual([three])
    expect(await ids('/v1/jobs?key=ci%2F1')).toEqual([one])
    expect(await ids('/v1/jobs?user_id=local&kind=f.a')).toEqual([three, one])
    expect(await ids('/v1/jobs?user_id=nobody')).toEqual([])
    expect(await ids(`/v1/jobs?kind=f.a&created_after=${created_at}`)).toEqual([three, one])
    expect(await ids(`/v1/jobs?kind=f.a&created_before=${created_at}`)).toEqual([])
    const later = new Date(Date.parse(created_at) + 3_600_000).toISOString()
    expect(await ids(`/v1/jobs?kind=f.a&created_before=${later}`)).toEqual([three, one])
    expect(await ids(`/v1/jobs?kind=f.a&created_after=${encodeURIComponent(later.replace('Z', '+00:00'))}`)).toEqual([])
  })

  test('reservations: reserve, list, consume, release, and the counts of a quota', async () => {
    const { body: first } = await http.call('POST', '/v1/reservations')
    const { body: second } = await http.call('POST', '/v1/reservations', { body: { ttl_seconds: 60 } })
    const [one, two] = [first, second] as [ReservationShape, ReservationShape]
    expect(first).toMatchObject({ state: 'active', user_id: 'local', job_id: null, quota_warnings: [] })
    expect(Date.parse(one.expires_at) - Date.parse(one.created_at)).toBe(300_000)
    expect(Date.parse(two.expires_at) - Date.parse(two.created_at)).toBe(60_000)
    const quota = async () => (await http.call('GET', '/v1/quotas/local')).body
    expect(await quota()).toMatchObject({ active_reservations: 2, custom: false, max_concurrent: null })

    const path = (id: string, verb: string) => `/v1/reservations/${id}/${verb}`
    const job_id = await submit({ kind: 'reserved' })
    const consume = () => http.call('POST', path(one.reservation_id, 'consume'), { body: { job_id } })
    expect(await consume()).toMatchObject({ status: 200, body: { state: 'consumed', job_id } })
    expect(await consume()).toMatchObject({ status: 200, body: { state: 'consumed', job_id } })
    const refused = await http.call('POST', path(one.reservation_id, 'release'))
    expect(refused).toMatchObject({ status: 409, body: { error: { code: 'RESERVATION_NOT_ACTIVE' } } })
    expect((await read<ReservationShape>('/v1/reservations?active=true')).data).toMatchObject([
      { reservation_id: two.reservation_id },
    ])
    expect(await http.call('POST', path(two.reservation_id, 'release'))).toMatchObject({ body: { state: 'released' } })
    expect(await http.call('GET', `/v1/reservations/${two.reservation_id.toUpperCase()}`)).toMatchObject({
      body: { state: 'released' },
    })
    expect((await read<ReservationShape>('/v1/reservations')).data.map(({ state }) => state)).toEqual([
      'released',
      'consumed',
    ])
    expect(await quota()).toMatchObject({ active_reservations: 0 })
  })

  test('a reservation is found by its id in upper or lower case', async () => {
    const token = await http.token('carol', 'submitter')
    const made = await http.call('POST', '/v1/reservations', { token, body: {} })
    const { reservation_id } = made.body as ReservationShape
    const body = { kind: 'reserved', reservation_id: reservation_id.toUpperCase() }
    const submitted = await http.call('POST', '/v1/jobs', { token, body })
    expect(submitted.status, submitted.text).toBe(201)
    const { job_id } = submitted.body as { job_id: string }
    expect(await http.call('GET', `/v1/reservations/${reservation_id}`, { token })).toMatchObject({
      body: { state: 'consumed', job_id },
    })
  })

  test('quotas: own and default limits, refusals, warnings from 80 %', async () => {
    const token = await http.token('ann', 'submitter')
    const admin = await http.token('root', 'admin')
    const asAnn = (body: object) => http.call('POST', '/v1/jobs', { token, body })
    await http.call('PUT', '/v1/quotas/*', { token: admin, body: { max_concurrent: 1 } })
    expect(await http.call('GET', '/v1/quotas/ann', { token })).toMatchObject({
      body: { max_concurrent: 1, custom: false },
    })
    const put = await http.call('PUT', '/v1/quotas/ann', {
      token: admin,
      body: { max_concurrent: 5, cost_limit: 10, period: 'day' },
    })
    expect(put).toMatchObject({ status: 200, body: { max_concurrent: 5, cost_limit: 10, period: 'day', custom: true } })

    for (let i = 0; i < 3; i++) expect(await asAnn({ kind: 'work' })).toMatchObject({ body: { quota_warnings: [] } })
    expect(await asAnn({ kind: 'work', estimated_cost: 8 })).toMatchObject({
      body: { quota_warnings: ['4 of 5 concurrent jobs in use'], cost_limit_warning: expect.stringContaining('80 %') },
    })
    expect(await asAnn({ kind: 'work', estimated_cost: 3 })).toMatchObject({
      status: 409,
      headers: { 'should-retry': 'false' },
      body: { error: { code: 'COST_LIMIT_EXCEEDED', message: expect.stringMatching(/^Cost limit/) } },
    })
    const reserved = (await http.call('POST', '/v1/reservations', { token })).body as ReservationShape
    const refusal = { code: 'QUOTA_EXCEEDED', message: 'Quota exceeded: Maximum 5 concurrent jobs allowed' }
    expect(await asAnn({ kind: 'work' })).toMatchObject({ status: 409, body: { error: refusal } })
    expect(await http.call('POST', '/v1/reservations', { token })).toMatchObject({
      status: 409,
      body: { error: refusal },
    })
    expect(await asAnn({ kind: 'work', reservation_id: reserved.reservation_id })).toMatchObject({ status: 201 })
    expect(await http.call('GET', '/v1/quotas/ann', { token })).toMatchObject({
      body: { active_jobs: 5, active_reservations: 0, spent: 8 },
    })
    expect(await http.call('DELETE', '/v1/quotas/ann', { token: admin })).toMatchObject({
      body: { max_concurrent: 1, custom: false },
    })
    await http.call('DELETE', '/v1/quotas/*', { token: admin })
    expect(await asAnn({ kind: 'work' })).toMatchObject({ status: 201 })
  })

  test('users are listed by id in pages, each with its quota', async () => {
    const admin = await http.token('zoe', 'admin')
    const get = async <T>(path: string) => (await http.call('GET', path, { token: admin })).body as T
    await http.call('PUT', '/v1/quotas/walt', { token: admin, body: { max_concurrent: 2 } })
    await http.call('POST', '/v1/jobs', { token: admin, body: { kind: 'work', estimated_cost: 1.5 } })
    const { data, next_cursor } = await get<Page<UserShape>>('/v1/users?limit=200')
    expect(next_cursor).toBeNull()
    expect(data.map((user) => user.user_id)).toEqual(['ann', 'carol', 'local', 'root', 'walt', 'zoe'])
    for (const { created_at: _, ...user } of data) {
      expect(await get<QuotaShape>(`/v1/quotas/${user.user_id}`)).toEqual(user)
    }
    const created_at = expect.stringMatching(/^20.*Z$/)
    expect(data.at(-2)).toMatchObject({ created_at: null, custom: true, max_concurrent: 2, active_jobs: 0, spent: 0 })
    expect(data.at(-1)).toMatchObject({ created_at, custom: false, max_concurrent: null, active_jobs: 1, spent: 1.5 })

    const first = await get<Page<UserShape>>('/v1/users?limit=4')
    const second = await get<Page<UserShape>>(`/v1/users?limit=4&cursor=${first.next_cursor}`)
    expect([first.data, second]).toEqual([data.slice(0, 4), { data: data.slice(4), next_cursor: null }])
    const refused = { status: 400, body: { error: { details: { field: 'cursor' } } } }
    const other = Buffer.from('jobs:ann').toString('base64url')
    for (const cursor of ['x', other, Buffer.from('users:a b').toString('base64url')]) {
      expect(await http.call('GET', `/v1/users?cursor=${cursor}`, { token: admin })).toMatchObject(refused)
    }
    const stranger = await http.call('GET', `/v1/jobs?cursor=${first.next_cursor}`, { token: admin })
    expect(stranger).toMatchObject(refused)
  })
})
