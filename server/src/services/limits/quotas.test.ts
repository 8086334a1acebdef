import { expect, test } from 'vitest'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { LOCAL_ADMIN } from '../access/access.ts'

const NONE = { max_concurrent: null, cost_limit: null, period: 'month' } as const

eachServices(({ services, submit }) => {
  const quotas = () => services().quotas

  test('an unknown user has the default limits, and no use', async () => {
    const { userId } = callerOf('submitter')
    expect(await quotas().get(LOCAL_ADMIN, userId)).toEqual({
      user_id: userId,
      ...NONE,
      custom: false,
      active_jobs: 0,
      active_reservations: 0,
      spent: 0,
      max_bytes: null,
      used_bytes: null,
    })
  })

  test('own limits can be set, apply, and can be cleared', async () => {
    const caller = callerOf('submitter')
    const limits = { max_concurrent: 3, cost_limit: 1.5, period: 'day' } as const
    const put = await quotas().put(LOCAL_ADMIN, caller.userId, limits)
    expect(put).toMatchObject({ ...limits, custom: true })
    await submit(caller, { estimated_cost: 0.75 })
    await services().reservations.reserve(caller)
    expect(await quotas().get(caller, caller.userId)).toEqual({
      user_id: caller.userId,
      ...limits,
      custom: true,
      active_jobs: 1,
      active_reservations: 1,
      spent: 0.75,
      max_bytes: null,
      used_bytes: null,
    })
    await expect(submit(caller, { estimated_cost: 0.750001 })).rejects.toThrow('Cost limit exceeded')
    const last = await submit(caller, { estimated_cost: 0.75 })
    await expect(submit(caller)).rejects.toThrow('Quota exceeded: Maximum 3 concurrent jobs allowed')
    await services().jobs.cancel(caller, last)
    expect(await quotas().get(caller, caller.userId)).toMatchObject({ active_jobs: 1, spent: 0.75 })
    expect(await quotas().clear(LOCAL_ADMIN, caller.userId)).toMatchObject({ ...NONE, custom: false, spent: 0.75 })
    await submit(caller, { estimated_cost: 100 })
  })

  test('the default limits apply at once to all users without own limits', async () => {
    const [before, custom] = [callerOf('submitter'), callerOf('submitter')]
    await submit(before)
    await quotas().put(LOCAL_ADMIN, custom.userId, { ...NONE, max_concurrent: 5 })
    await quotas().put(LOCAL_ADMIN, '*', { ...NONE, max_concurrent: 1 })
    const after = callerOf('submitter')
    await submit(after)
    for (const caller of [before, after]) {
      await expect(submit(caller)).rejects.toThrow('Quota exceeded: Maximum 1 concurrent jobs allowed')
      expect(await quotas().get(caller, caller.userId)).toMatchObject({ max_concurrent: 1, custom: false })
    }
    await Promise.all([1, 2, 3, 4, 5].map(() => submit(custom)))
    await expect(submit(custom)).rejects.toThrow('Maximum 5')
    await quotas().clear(LOCAL_ADMIN, '*')
    expect(await quotas().get(LOCAL_ADMIN, '*')).toMatchObject(NONE)
    await submit(before)
  })

  test('a lowered limit ends no running job, and admits no more', async () => {
    const caller = callerOf('submitter')
    await Promise.all([submit(caller), submit(caller)])
    await quotas().put(LOCAL_ADMIN, caller.userId, { ...NONE, max_concurrent: 0 })
    expect(await quotas().get(caller, caller.userId)).toMatchObject({ max_concurrent: 0, active_jobs: 2 })
    await expect(submit(caller)).rejects.toThrow('Quota exceeded: Maximum 0')
    expect(await thrownBy(services().reservations.reserve(caller))).toMatchObject({ code: 'QUOTA_EXCEEDED' })
  })
})
