import type {
  AuditShape,
  DeadLetterDetail,
  DeadLetterGroup,
  DeadLetterShape,
  JobDetail,
  JobShape,
  Page,
  RedriveShape,
  SubmitRequest,
} from '@ichido/sdk/protocol'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { lead, redriver } from '../../testing/store/dead-letters.ts'
import { sql, unique, until } from '../../testing/store/store.ts'

describe.each(ENGINES)('dead letters on %s', (engine) => {
  let http: TestApp
  let mine: string
  let operator: string
  beforeAll(async () => {
    http = await testApp(engine)
    mine = await http.token('mine', 'submitter')
    operator = await http.token('op', 'operator')
  })
  afterAll(() => http.close())

  const WORKER = 'local-test'
  const call = (method: string, path: string, options: Call = {}) =>
    http.call(method, path, { token: operator, ...options })

  async function read<T>(path: string, token = operator): Promise<T> {
    const answer = await call('GET', path, { token })
    expect(answer).toMatchObject({ status: 200 })
    return answer.body as T
  }

  /** A job that failed for good. */
  async function dead(
    request: Partial<SubmitRequest> = {},
    error = { code: 'BROKEN', message: 'It broke' },
    token = mine,
  ): Promise<string> {
    const body = { kind: 'work', queue: unique('q'), ...request }
    const submitted = await call('POST', '/v1/jobs', { token, body })
    const { job_id, queue } = submitted.body as { job_id: string; queue: string }
    await failOne(queue, error)
    return job_id
  }

  async function failOne(queue: string, error = { code: 'BROKEN', message: 'It broke' }): Promise<void> {
    const { runs } = http.services
    const [lease] = await runs.lease(WORKER, { queues: [queue], kinds: [], max: 1, waitMs: 0, startId: 's' })
    await runs.finish(WORKER, lease?.lease_id ?? '', { verb: 'fail', error, retryable: false })
  }

  const code = (answer: Answer) => [answer.status, (answer.body as { error?: { code: string } }).error?.code]

  test('are listed newest first, by queue, kind, code, user, time and text, page by page', async () => {
    const queue = unique('list')
    const ids: string[] = []
    for (let i = 0; i < 5; i++)
      ids.unshift(await dead({ queue }, { code: `CODE_${i % 2}`, message: `Disk 100% full: ${i}` }))
    await dead({ queue: unique('other') })
    const list = (filter: string) => read<Page<DeadLetterShape>>(`/v1/dead-letters?queue=${queue}${filter}`)
    const all = await list('')
    expect(all.data.map(({ job_id }) => job_id)).toEqual(ids)
    expect(all.data[0]).toMatchObject({
      user_id: 'mine',
      kind: 'work',
      error_code: 'CODE_0',
      retry_count: 1,
      redrive_id: null,
    })
    const paged: string[] = []
    for (let cursor = ''; ; ) {
      const { data, next_cursor } = await list(`&limit=2${cursor}`)
      paged.push(...data.map(({ job_id }) => job_id))
      if (next_cursor === null) break
      cursor = `&cursor=${next_cursor}`
    }
    expect(paged).toEqual(ids)
    const found = async (filter: string) => (await list(filter)).data.length
    expect(await found('&error_code=CODE_1')).toBe(2)
    expect(await found('&kind=nothing')).toBe(0)
    expect(await found('&user_id=mine')).toBe(5)
    expect(await found('&user_id=nobody')).toBe(0)
    expect(await found(`&text=${encodeURIComponent('disk 100% FULL')}`)).toBe(5)
    expect(await found(`&text=${encodeURIComponent('100_ full')}`)).toBe(0)
    const middle = all.data[2]?.dead_at ?? ''
    const since = await found(`&dead_after=${middle}`)
    expect(since).toBeGreaterThanOrEqual(3)
    expect(since + (await found(`&dead_before=${middle}`))).toBe(5)
    expect(code(await call('GET', '/v1/dead-letters?cursor=am9iczo'))).toEqual([400, 'INVALID_PAYLOAD'])
  })

  test('are grouped by queue, kind and code, the largest group first', async () => {
    const queue = unique('group')
    for (let i = 0; i < 3; i++) await dead({ queue }, { code: 'OFTEN', message: `Message ${i}` })
    await dead({ queue }, { code: 'ONCE', message: 'Other' })
    const { data } = await read<{ data: DeadLetterGroup[] }>(`/v1/dead-letters/groups?queue=${queue}`)
    expect(data).toMatchObject([
      { queue, kind: 'work', error_code: 'OFTEN', count: 3, sample_message: expect.stringMatching(/^Message/) },
      { error_code: 'ONCE', count: 1, sample_message: 'Other' },
    ])
    const [often, once] = data
    const sum = (counts: readonly number[] = []) => counts.reduce((all, count) => all + count, 0)
    expect([often?.counts.length, sum(often?.counts), sum(once?.counts)]).toEqual([24, 3, 1])
    expect(Date.parse(often?.first_dead_at ?? '')).toBeLessThanOrEqual(Date.parse(often?.last_dead_at ?? ''))
  })

  test('have a short error in lists, and the whole error in the detail', async () => {
    const queue = unique('long')
    const error = { code: 'LONG', message: 'm'.repeat(5_000), traceback: 't'.repeat(40_000) }
    const id = await dead({ queue }, error)
    const message = `${'m'.repeat(999)}…`
    const jobs = await read<Page<JobShape>>(`/v1/jobs?queue=${queue}`)
    expect(jobs.data.map((job) => job.error)).toEqual([{ code: 'LONG', message }])
    const letters = await read<Page<DeadLetterShape>>(`/v1/dead-letters?queue=${queue}`)
    expect(letters.data).toMatchObject([{ error_code: 'LONG', error_message: message }])
    const groups = await read<{ data: DeadLetterGroup[] }>(`/v1/dead-letters/groups?queue=${queue}`)
    expect(groups.data).toMatchObject([{ sample_message: message }])
    expect(await read<JobDetail>(`/v1/jobs/${id}`)).toMatchObject({ error, runs: [{ error }] })
    const shown = await read<DeadLetterDetail>(`/v1/dead-letters/${id}`)
    expect(shown).toMatchObject({ error_message: error.message, job: { error } })
  })

  test('are shown with their job, and only to readers of the job', async () => {
    const jobId = await dead({ payload: { n: 1 } })
    const detail = await read<DeadLetterDetail>(`/v1/dead-letters/${jobId}`, mine)
    expect(detail).toMatchObject({
      job_id: jobId,
      error_message: 'It broke',
      job: { payload: { n: 1 }, state: 'FAILED' },
    })
    const other = await http.token('other', 'submitter')
    expect(code(await call('GET', `/v1/dead-letters/${jobId}`, { token: other }))).toEqual([404, 'NOT_FOUND'])
    expect((await read<Page<DeadLetterShape>>('/v1/dead-letters', other)).data).toEqual([])
    expect((await read<Page<DeadLetterShape>>('/v1/dead-letters?user_id=mine', other)).data).toEqual([])
    expect((await read<{ data: unknown[] }>('/v1/dead-letters/groups', other)).data).toEqual([])
    expect(code(await call('POST', `/v1/jobs/${jobId}/retry`, { token: other }))).toEqual([404, 'NOT_FOUND'])
    const viewer = await http.token('sees', 'viewer')
    expect(code(await call('POST', `/v1/jobs/${jobId}/retry`, { token: viewer }))).toEqual([403, 'FORBIDDEN'])
  })

  describe('a retry', () => {
    test('runs the same job again, with or without a body', async () => {
      for (const body of [undefined, {}]) {
        const jobId = await dead()
        const answer = await call('POST', `/v1/jobs/${jobId}/retry`, { token: mine, ...(body && { body }) })
        expect(answer).toMatchObject({ status: 200, body: { job_id: jobId, state: 'PENDING', retry_count: 0 } })
        expect((answer.body as JobDetail).runs).toHaveLength(2)
        expect(code(await call('GET', `/v1/dead-letters/${jobId}`))).toEqual([404, 'NOT_FOUND'])
        const again = await call('POST', `/v1/jobs/${jobId}/retry`, { token: mine })
        expect(code(again)).toEqual([409, 'NOT_ENDED'])
      }
    })

    test('is refused during a cancellation, and for an unknown job', async () => {
      const queue = unique('q')
      const { body } = await call('POST', '/v1/jobs', { body: { kind: 'work', queue } })
      const { job_id } = body as { job_id: string }
      await http.services.runs.lease(WORKER, { queues: [queue], kinds: [], max: 1, waitMs: 0, startId: 's' })
      await call('POST', `/v1/jobs/${job_id}/cancel`)
      const refused = await call('POST', `/v1/jobs/${job_id}/retry`)
      expect(code(refused)).toEqual([409, 'NOT_ENDED'])
      expect(refused.text).toContain('its cancellation is in progress')
      expect(code(await call('POST', '/v1/jobs/00000000-0000-7000-8000-000000000000/retry'))).toEqual([
        404,
        'NOT_FOUND',
      ])
      expect(code(await call('POST', `/v1/jobs/${job_id}/retry`, { body: { nonsense: 1 } }))).toEqual([
        400,
        'INVALID_PAYLOAD',
      ])
    })

    test('with another payload makes a replacement, once for each key', async () => {
      const jobId = await dead({ queue: unique('edit'), labels: { a: 'b' }, max_attempts: 7, payload: { n: 1 } })
      const send = () =>
        call('POST', `/v1/jobs/${jobId}/retry`, { body: { payload: { n: 2 } }, headers: { 'idempotency-key': jobId } })
      const first = await send()
      expect(first).toMatchObject({
        status: 201,
        body: {
          replaces_job_id: jobId,
          user_id: 'mine',
          payload: { n: 2 },
          labels: { a: 'b' },
          policy: { max_attempts: 7 },
        },
      })
      expect(code(await call('GET', `/v1/dead-letters/${jobId}`))).toEqual([404, 'NOT_FOUND'])
      const again = await send()
      expect(again).toMatchObject({ status: 201, headers: { 'idempotent-replayed': 'true' } })
      expect((again.body as JobDetail).job_id).toBe((first.body as JobDetail).job_id)
      expect((await read<JobDetail>(`/v1/jobs/${jobId}`)).state).toBe('FAILED')
      const nothing = await call('POST', `/v1/jobs/${await dead()}/retry`, { body: { payload: null } })
      expect(nothing).toMatchObject({ status: 201, body: { payload: null } })
    })

    test('is refused after a replacement, and a replacement after a retry or success', async () => {
      const jobId = await dead()
      const replaced = await call('POST', `/v1/jobs/${jobId}/retry`, { body: { payload: 1 } })
      for (const body of [{}, { payload: 2 }]) {
        const again = await call('POST', `/v1/jobs/${jobId}/retry`, { body })
        expect(code(again)).toEqual([409, 'ALREADY_REPLACED'])
        expect(again.body).toMatchObject({ error: { details: { job_id: (replaced.body as JobDetail).job_id } } })
      }
      const retried = await dead()
      await call('POST', `/v1/jobs/${retried}/retry`)
      const late = await call('POST', `/v1/jobs/${retried}/retry`, { body: { payload: 1 } })
      expect(code(late)).toEqual([409, 'NOT_ENDED'])
      expect(late.body).toMatchObject({ error: { details: { state: 'PENDING', cancel_requested: false } } })
      await sql(http.services.deps.store, "UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE job_id = $1", retried)
      expect(code(await call('POST', `/v1/jobs/${retried}/retry`, { body: { payload: 1 } }))).toEqual([
        409,
        'ALREADY_ENDED',
      ])
    })

    test('with another payload checks the quota of the owner', async () => {
      const full = await http.token('full', 'submitter')
      const jobId = await dead({}, undefined, full)
      const admin = await http.token('admin', 'admin')
      await call('PUT', '/v1/quotas/full', { token: admin, body: { max_concurrent: 0 } })
      for (const body of [{}, { payload: 1 }]) {
        expect(code(await call('POST', `/v1/jobs/${jobId}/retry`, { body }))).toEqual([409, 'QUOTA_EXCEEDED'])
      }
      expect(await read(`/v1/dead-letters/${jobId}`)).toMatchObject({ job_id: jobId })
    })
  })

  describe('a redrive', () => {
    /** Runs the leader until the redrive has ended. */
    async function finished(redriveId: string): Promise<RedriveShape> {
      const { store } = http.services.deps
      const tick = redriver(store, await lead(store))
      return until('the redrive', async () => {
        await tick()
        const now = await read<RedriveShape>(`/v1/dead-letters/redrives/${redriveId}`)
        return now.state === 'done' && now
      })
    }

    test('can be counted, begun, shown and listed', async () => {
      const queue = unique('redrive')
      for (let i = 0; i < 3; i++) await dead({ queue })
      const redrive = (body: object) => call('POST', '/v1/dead-letters/redrive', { body })
      const dry = await redrive({ filter: { queue }, dry_run: true })
      expect(dry).toMatchObject({ status: 200, body: { dry_run: true, matched: 3 } })
      const begun = await redrive({ filter: { queue }, per_second: 100 })
      expect(begun).toMatchObject({
        status: 202,
        body: {
          state: 'running',
          actor: 'op',
          filter: { queue },
          per_second: 100,
          matched: 3,
          redriven: 0,
          ended_at: null,
        },
      })
      const { redrive_id } = begun.body as RedriveShape
      expect(await finished(redrive_id)).toMatchObject({
        state: 'done',
        matched: 3,
        redriven: 3,
        ended_at: expect.any(String),
      })
      const { data } = await read<Page<RedriveShape>>('/v1/dead-letters/redrives?limit=1')
      expect(data).toMatchObject([{ redrive_id }])
      expect(code(await call('POST', `/v1/dead-letters/redrives/${redrive_id}/abort`))).toEqual([409, 'ALREADY_ENDED'])
      const audit = 'SELECT actor, action FROM ichido.audit WHERE subject = $1 ORDER BY id'
      expect(await sql(http.services.deps.store, audit, redrive_id)).toEqual([
        { actor: 'op', action: 'redrive.begin' },
        { actor: 'op', action: 'redrive.done' },
      ])
      const entries = await read<Page<AuditShape>>(`/v1/audit?subject=${redrive_id}&action=redrive.begin`)
      expect(entries.data.map(({ after }) => after)).toEqual([{ filter: { queue }, matched: 3, per_second: 100 }])
    })

    test('can be aborted by its actor or an operator, and the abort is idempotent', async () => {
      await dead()
      const begun = await call('POST', '/v1/dead-letters/redrive', { token: mine, body: { filter: {} } })
      const { redrive_id } = begun.body as RedriveShape
      const other = await http.token('another', 'submitter')
      const path = `/v1/dead-letters/redrives/${redrive_id}`
      expect(code(await call('GET', path, { token: other }))).toEqual([404, 'NOT_FOUND'])
      expect(code(await call('POST', `${path}/abort`, { token: other }))).toEqual([404, 'NOT_FOUND'])
      for (const token of [operator, mine]) {
        expect(await call('POST', `${path}/abort`, { token })).toMatchObject({
          status: 200,
          body: { state: 'aborted' },
        })
      }
    })

    test('of a submitter includes only its own jobs, by list and by filter', async () => {
      const jobId = await dead()
      const poor = await http.token('poor', 'submitter')
      const asPoor = (body: object) => call('POST', '/v1/dead-letters/redrive', { token: poor, body })
      for (const choice of [{ job_ids: [jobId] }, { filter: {} }]) {
        expect(await asPoor({ ...choice, dry_run: true })).toMatchObject({ body: { matched: 0 } })
      }
      expect(code(await asPoor({ filter: { user_id: 'mine' } }))).toEqual([403, 'FORBIDDEN'])
      expect(await asPoor({ job_ids: [jobId] })).toMatchObject({ status: 202, body: { matched: 0, filter: null } })
      expect(await read(`/v1/dead-letters/${jobId}`)).toMatchObject({ redrive_id: null })
    })

    test('is refused with the missing or extra field', async () => {
      const id = '00000000-0000-7000-8000-000000000000'
      for (const body of [
        {},
        { job_ids: [] },
        { job_ids: ['x'] },
        { job_ids: [id], filter: {} },
        { filter: { nonsense: 1 } },
        { filter: {}, per_second: 0 },
        { filter: {}, per_second: 1e9 },
      ]) {
        expect(code(await call('POST', '/v1/dead-letters/redrive', { body })), JSON.stringify(body)).toEqual([
          400,
          'INVALID_PAYLOAD',
        ])
      }
      expect(code(await call('GET', `/v1/dead-letters/redrives/${id}`))).toEqual([404, 'NOT_FOUND'])
      expect(code(await call('GET', '/v1/dead-letters/redrives/x'))).toEqual([404, 'NOT_FOUND'])
    })
  })

  test('are counted when made and when resolved, with the time in between', async () => {
    const value = async (series: string) => {
      const { text } = await call('GET', '/metrics')
      return Number(
        text
          .split('\n')
          .find((line) => line.startsWith(`${series} `))
          ?.split(' ')[1] ?? 0,
      )
    }
    const [made, retried] = [
      'ichido_dead_letters_made_total',
      'ichido_dead_letter_resolution_seconds_count{how="retried"}',
    ]
    const before = [await value(made), await value(retried)]
    const jobId = await dead()
    await call('POST', `/v1/jobs/${jobId}/retry`)
    expect([await value(made), await value(retried)]).toEqual(before.map((count) => count + 1))
  })
})
