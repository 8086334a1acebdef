import { expect, test } from 'vitest'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { sql, unique } from '../../testing/store/store.ts'

const HOUR_MS = 3_600_000

eachServices(({ services, submit }) => {
  const keys = () => services().keys

  test('extending a key never shortens it', async () => {
    const caller = callerOf('submitter')
    const key = unique('ci/main 1'.replace(' ', '#'))
    await submit(caller, {}, key)
    const endsAt = async () => Date.parse((await keys().get(caller, key))[0]?.expires_at ?? '')
    const first = await endsAt()
    const now = Date.now()
    expect(Math.abs(first - now - 24 * HOUR_MS)).toBeLessThan(60_000)
    expect(await keys().extend(caller, key, 1)).toMatchObject([{ expires_at: new Date(first).toISOString() }])
    await keys().extend(caller, key, 72.5)
    const extended = await endsAt()
    expect(Math.abs(extended - now - 72.5 * HOUR_MS)).toBeLessThan(60_000)
    await keys().extend(caller, key, 72)
    expect(await endsAt()).toBe(extended)
  })

  test('a key is active until it expires and its job has ended', async () => {
    const caller = callerOf('submitter')
    const [key, other] = [unique('key'), unique('key')]
    const jobId = await submit(caller, {}, key)
    await submit(caller, {}, other)
    const isActive = async () => (await keys().get(caller, key))[0]?.active
    const listed = async (activeOnly: boolean) =>
      (await keys().list(caller, activeOnly, 10, null)).data.map((one) => one.key)
    await sql(services().deps.store, 'UPDATE ichido.idempotency_keys SET expires_at = 1 WHERE job_id = $1', jobId)
    expect(await isActive()).toBe(true)
    expect(await listed(true)).toEqual([other, key])
    expect(await submit(caller, {}, key)).toBe(jobId)

    await services().jobs.cancel(caller, jobId)
    expect(await isActive()).toBe(false)
    expect(await listed(true)).toEqual([other])
    expect(await listed(false)).toEqual([other, key])
    const next = await submit(caller, { priority: 1 }, key)
    expect(next).not.toBe(jobId)
    expect(await keys().get(caller, key)).toMatchObject([{ job_id: next, active: true }])
  })

  test('a list continues at its cursor', async () => {
    const caller = callerOf('submitter')
    const made: string[] = []
    for (let i = 0; i < 5; i++) {
      const key = unique('paged')
      await submit(caller, {}, key)
      made.unshift(key)
    }
    const seen: string[] = []
    let cursor: string | null = null
    do {
      const page: Awaited<ReturnType<ReturnType<typeof keys>['list']>> = await keys().list(caller, true, 2, cursor)
      expect(page.data.length).toBeLessThanOrEqual(2)
      seen.push(...page.data.map(({ key }) => key))
      cursor = page.next_cursor
    } while (cursor !== null)
    expect(seen).toEqual(made)
  })

  test('an unused key is not found', async () => {
    const caller = callerOf('admin')
    for (const call of [keys().get(caller, 'nobody’s'), keys().extend(caller, 'nobody’s', 1)].map(thrownBy)) {
      expect(await call).toMatchObject({ code: 'NOT_FOUND', message: 'There is no key "nobody’s"' })
    }
  })
})
