import { expect, test } from 'vitest'
import { EVERY_JOB } from '../../store/jobs/list-jobs.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { unique } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from './access.ts'

const ALL = { userId: null, activeOnly: false, limit: 100, cursor: null }
const LIMITS = { max_concurrent: 1, cost_limit: null, period: 'day' } as const

eachServices(({ services, submit }) => {
  /** One of everything that a user can have. */
  async function belongings() {
    const owner = callerOf('submitter')
    const key = unique('key')
    const kind = unique('kind')
    const jobId = await submit(owner, { kind, labels: { owner: owner.userId } }, key)
    const { reservation_id: reservationId } = await services().reservations.reserve(owner)
    return { owner, key, kind, jobId, reservationId }
  }

  test('a submitter reads and changes its own jobs', async () => {
    const { owner, key, jobId, reservationId } = await belongings()
    expect(await services().jobs.get(owner, jobId)).toMatchObject({ job_id: jobId, user_id: owner.userId })
    expect((await services().jobs.list(owner, EVERY_JOB, 10, null)).data).toMatchObject([{ job_id: jobId }])
    expect((await services().events.read(owner, jobId, 0, 0)).events).toHaveLength(1)
    expect(await services().keys.get(owner, key)).toMatchObject([{ key, job_id: jobId }])
    expect((await services().keys.list(owner, true, 10, null)).data).toMatchObject([{ key }])
    expect(await services().keys.extend(owner, key, 48)).toMatchObject([{ key }])
    expect(await services().reservations.get(owner, reservationId)).toMatchObject({ state: 'active' })
    expect((await services().reservations.list(owner, ALL)).data).toHaveLength(1)
    expect(await services().quotas.get(owner, owner.userId)).toMatchObject({ active_jobs: 1, active_reservations: 1 })
    expect(await services().reservations.release(owner, reservationId)).toMatchObject({ state: 'released' })
    expect((await services().jobs.cancel(owner, jobId)).outcome).toBe('canceled')
    expect(await thrownBy(services().jobs.result(owner, jobId, 0))).toMatchObject({ code: 'JOB_FAILED' })
  })

  test('another submitter sees nothing of them', async () => {
    const { owner, key, kind, jobId, reservationId } = await belongings()
    const other = callerOf('submitter')
    const signal = AbortSignal.abort()
    const othersJob = await submit(other)
    const { reservation_id: othersReservation } = await services().reservations.reserve(other)
    const refused = await Promise.all(
      [
        services().jobs.get(other, jobId),
        services().jobs.result(other, jobId, 0),
        services().jobs.result(other, jobId, 1_000, signal),
        services().jobs.cancel(other, jobId),
        services().events.read(other, jobId, 0, 0),
        services().events.read(other, jobId, 0, 1_000, signal),
        services().keys.get(other, key),
        services().keys.extend(other, key, 48),
        services().reservations.get(other, reservationId),
        services().reservations.release(other, reservationId),
        services().reservations.consume(other, reservationId, othersJob),
        services().reservations.consume(other, othersReservation, jobId),
      ].map(thrownBy),
    )
    expect(refused.map((error) => (error as { code: string }).code)).toEqual(refused.map(() => 'NOT_FOUND'))
    // The message does not reveal the owner.
    for (const error of refused) expect(String(error)).not.toContain(owner.userId)

    const lists = [
      services().jobs.list(other, { ...EVERY_JOB, kind }, 10, null),
      services().jobs.list(other, { ...EVERY_JOB, userId: owner.userId }, 10, null),
      services().jobs.list(other, { ...EVERY_JOB, key }, 10, null),
      services().jobs.list(other, { ...EVERY_JOB, states: ['PENDING'], kind }, 10, null),
      services().jobs.list(other, { ...EVERY_JOB, label: { name: 'owner', value: owner.userId } }, 10, null),
      services().keys.list(other, false, 100, null),
      services().reservations.list(other, { ...ALL, userId: owner.userId }),
    ]
    for (const { data } of await Promise.all(lists)) expect(data).toEqual([])
    expect((await services().reservations.list(other, ALL)).data).toHaveLength(1)
    expect(await thrownBy(services().quotas.get(other, owner.userId))).toMatchObject({ code: 'FORBIDDEN' })
    expect(await services().jobs.get(owner, jobId)).toMatchObject({ state: 'PENDING' })
    expect(await services().reservations.get(owner, reservationId)).toMatchObject({ state: 'active' })
  })

  test('two submitters may use the same key for different jobs', async () => {
    const [one, two] = [callerOf('submitter'), callerOf('submitter')]
    const key = unique('shared')
    const [a, b] = [await submit(one, {}, key), await submit(two, { priority: 5 }, key)]
    expect(a).not.toBe(b)
    expect(await services().keys.get(one, key)).toMatchObject([{ job_id: a, user_id: one.userId }])
    expect(await services().keys.get(LOCAL_ADMIN, key)).toHaveLength(2)
    const [before] = await services().keys.get(two, key)
    await services().keys.extend(one, key, 1_000)
    expect(await services().keys.get(two, key)).toEqual([before])
  })

  test('a viewer sees all and changes nothing', async () => {
    const { owner, key, jobId, reservationId } = await belongings()
    const viewer = callerOf('viewer')
    expect(await services().jobs.get(viewer, jobId)).toMatchObject({ job_id: jobId })
    expect((await services().jobs.list(viewer, { ...EVERY_JOB, userId: owner.userId }, 10, null)).data).toHaveLength(1)
    expect(await services().keys.get(viewer, key)).toHaveLength(1)
    expect(await services().reservations.get(viewer, reservationId)).toMatchObject({ user_id: owner.userId })
    expect(await services().quotas.get(viewer, owner.userId)).toMatchObject({ active_jobs: 1 })
    const refused = await Promise.all(
      [
        services().jobs.cancel(viewer, jobId),
        services().keys.extend(viewer, key, 48),
        services().quotas.put(viewer, owner.userId, LIMITS),
        services().quotas.clear(viewer, owner.userId),
        services().access.listTokens(viewer),
      ].map(thrownBy),
    )
    for (const error of refused) expect(error).toMatchObject({ code: 'FORBIDDEN' })
  })

  test('an operator changes jobs of other users, and administers nothing', async () => {
    const { key, jobId } = await belongings()
    const operator = callerOf('operator')
    expect(await services().keys.extend(operator, key, 72)).toHaveLength(1)
    expect((await services().jobs.cancel(operator, jobId)).job).toMatchObject({ state: 'CANCELED' })
    const token = { userId: 'u', role: 'viewer', name: '', ttlSeconds: null } as const
    const refused = await Promise.all(
      [
        services().quotas.put(operator, operator.userId, LIMITS),
        services().quotas.clear(operator, operator.userId),
        services().access.createToken(operator, token),
        services().access.revokeToken(operator, jobId),
        services().access.listTokens(operator),
      ].map(thrownBy),
    )
    for (const error of refused) expect(error).toMatchObject({ code: 'FORBIDDEN' })
  })
})
