import type { ErrorBody, JobDetail, OperationShape, Page, SubmitResponse } from '@ichido/sdk/protocol'
import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Call, type TestApp, testApp } from '../../testing/http/app.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { lead, redriver } from '../../testing/store/dead-letters.ts'
import { unique, until } from '../../testing/store/store.ts'

describe.each(ENGINES)('operations on %s', (engine) => {
  let http: TestApp
  let tokens: Record<'mine' | 'other' | 'operator' | 'viewer', string>
  beforeAll(async () => {
    http = await testApp(engine)
    tokens = {
      mine: await http.token('mine', 'submitter'),
      other: await http.token('other', 'submitter'),
      operator: await http.token('op', 'operator'),
      viewer: await http.token('eye', 'viewer'),
    }
  })
  afterAll(() => http.close())

  const call = (method: string, path: string, options: Call = {}) =>
    http.call(method, path, { token: tokens.operator, ...options })
  const operate = (body: object, token = tokens.operator) => call('POST', '/v1/operations', { body, token })
  const code = async (answer: ReturnType<typeof call>) => {
    const { status, body } = await answer
    return [status, (body as ErrorBody).error.code]
  }

  async function submit(queue: string, token = tokens.mine, more: object = {}): Promise<string> {
    const { body } = await call('POST', '/v1/jobs', { token, body: { kind: 'work', queue, ...more } })
    return (body as SubmitResponse).job_id
  }

  const state = async (jobId: string) => ((await call('GET', `/v1/jobs/${jobId}`)).body as JobDetail).state

  async function ended(begun: Awaited<ReturnType<typeof call>>): Promise<OperationShape> {
    expect(begun).toMatchObject({ status: 202 })
    const { operation_id } = begun.body as OperationShape
    const tick = redriver(http.services.deps.store, await lead(http.services.deps.store))
    return until('the operation', async () => {
      await tick()
      const { body } = await call('GET', `/v1/operations/${operation_id}`)
      return (body as OperationShape).state !== 'running' && (body as OperationShape)
    })
  }

  test('a dry run of a redrive counts a job that is listed twice once', async () => {
    const id = await submit(unique('q'))
    const dry = await operate({ action: 'redrive', job_ids: [id, id], dry_run: true })
    expect(dry).toMatchObject({ status: 200, body: { matched: 0, by_state: {} } })
  })

  test('cancel all that match, after a dry run, and retry them', async () => {
    const queue = unique('q')
    const ids = [await submit(queue), await submit(queue), await submit(queue)]
    const filter = { queue, state: 'PENDING' }
    expect((await operate({ action: 'cancel', filter, dry_run: true })).body).toEqual({
      dry_run: true,
      action: 'cancel',
      matched: 3,
      capped: false,
      by_state: { PENDING: { count: 3, capped: false } },
    })
    const begun = await operate({ action: 'cancel', filter, per_second: 1_000 })
    expect(begun.body).toEqual({
      operation_id: expect.any(String),
      action: 'cancel',
      state: 'running',
      filter,
      job_ids: null,
      per_second: 1_000,
      matched: 3,
      done: 0,
      waiting: 0,
      skipped: 0,
      refused: 0,
      created_by: 'op',
      created_at: expect.any(String),
      ended_at: null,
    })
    expect(await ended(begun)).toMatchObject({ state: 'done', done: 3, ended_at: expect.any(String) })
    for (const id of ids) expect(await state(id)).toBe('CANCELED')
    const again = await operate({ action: 'retry', job_ids: ids })
    expect(again.body).toMatchObject({ matched: 3, filter: null, job_ids: [...ids].sort() })
    expect(await ended(again)).toMatchObject({ done: 3 })
    for (const id of ids) expect(await state(id)).toBe('PENDING')
  })

  test('a redrive is an operation, and other operations are no redrives', async () => {
    const redrive = await operate({ action: 'redrive', filter: { queue: unique('none') } })
    const { operation_id } = redrive.body as OperationShape
    expect((await call('GET', `/v1/dead-letters/redrives/${operation_id}`)).body).toMatchObject({ matched: 0 })
    expect(await ended(redrive)).toMatchObject({ action: 'redrive', state: 'done', matched: 0 })
    const cancel = (await operate({ action: 'cancel', filter: { queue: unique('none') } })).body as OperationShape
    const path = `/v1/dead-letters/redrives/${cancel.operation_id}`
    expect(await code(call('GET', path))).toEqual([404, 'NOT_FOUND'])
    expect(await code(call('POST', `${path}/abort`))).toEqual([404, 'NOT_FOUND'])
    expect((await call('POST', `/v1/operations/${cancel.operation_id}/abort`)).body).toMatchObject({ state: 'aborted' })
    expect((await call('POST', `/v1/operations/${cancel.operation_id}/abort`)).status).toBe(200)
    expect(await code(call('POST', `/v1/operations/${operation_id}/abort`))).toEqual([409, 'ALREADY_ENDED'])
    const { data, next_cursor } = (await call('GET', '/v1/operations?limit=1')).body as Page<OperationShape>
    expect(data).toMatchObject([{ operation_id: cancel.operation_id }])
    const next = (await call('GET', `/v1/operations?limit=1&cursor=${next_cursor}`)).body as Page<OperationShape>
    expect(next.data).toMatchObject([{ operation_id }])
  })

  test('a submitter changes and sees only its own', async () => {
    const queue = unique('q')
    const [mine, theirs] = [await submit(queue), await submit(queue, tokens.other)]
    const dry = await operate({ action: 'cancel', filter: { queue }, dry_run: true }, tokens.mine)
    expect(dry.body).toMatchObject({ matched: 1 })
    const listed = await operate({ action: 'cancel', job_ids: [mine, theirs] }, tokens.mine)
    expect(listed.body).toMatchObject({ matched: 1, job_ids: [mine] })
    expect(await ended(listed)).toMatchObject({ done: 1 })
    expect([await state(mine), await state(theirs)]).toEqual(['CANCELED', 'PENDING'])
    const foreign = operate({ action: 'cancel', filter: { user_id: 'other' } }, tokens.mine)
    expect(await code(foreign)).toEqual([403, 'FORBIDDEN'])
    expect(await code(operate({ action: 'cancel', filter: {} }, tokens.viewer))).toEqual([403, 'FORBIDDEN'])
    const { operation_id } = listed.body as OperationShape
    const path = `/v1/operations/${operation_id}`
    expect(await code(call('GET', path, { token: tokens.other }))).toEqual([404, 'NOT_FOUND'])
    expect(await code(call('POST', `${path}/abort`, { token: tokens.other }))).toEqual([404, 'NOT_FOUND'])
    const own = (await call('GET', '/v1/operations', { token: tokens.other })).body as Page<OperationShape>
    expect(own.data).toEqual([])
  })

  test.each<[string, object]>([
    ['action', { filter: {} }],
    ['action', { action: 'delete', filter: {} }],
    ['job_ids', { action: 'cancel' }],
    ['job_ids', { action: 'cancel', filter: {}, job_ids: [v7()] }],
    ['job_ids', { action: 'retry', job_ids: [] }],
    ['job_ids.0', { action: 'retry', job_ids: ['x'] }],
    ['per_second', { action: 'retry', filter: {}, per_second: 0 }],
    ['filter.state', { action: 'cancel', filter: { state: 'SUCCEEDED' } }],
    ['filter.state', { action: 'retry', filter: { waiting_longer_than_seconds: 5 } }],
    ['filter.error_code', { action: 'retry', filter: { error_code: '' } }],
    ['filter.dead_after', { action: 'cancel', filter: { dead_after: '2026-01-01T00:00:00Z' } }],
    ['filter.label', { action: 'redrive', filter: { label: 'a:b' } }],
    ['more', { action: 'cancel', filter: {}, more: 1 }],
  ])('a wrong %s is named: %j', async (field, body) => {
    const { status, body: answer } = await operate(body)
    expect([status, (answer as ErrorBody).error.details.field]).toEqual([400, field])
  })

  test('unknown operations are not found', async () => {
    expect(await code(call('GET', `/v1/operations/${v7()}`))).toEqual([404, 'NOT_FOUND'])
    expect(await code(call('POST', `/v1/operations/${v7()}/abort`))).toEqual([404, 'NOT_FOUND'])
  })
})
