import { expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { eachEmbedded, thrownBy } from '../testing/services/embedded.ts'
import { unique } from '../testing/store/store.ts'
import { defineKind } from './index.ts'

eachEmbedded(({ ichido }) => {
  test('the cost of a successful run replaces the estimate', async () => {
    const spent = async () => (await ichido().node.services.quotas.get(LOCAL_ADMIN, 'local')).spent
    const costly = defineKind(unique('costly'), { maxAttempts: 1 })
    const seen: number[] = []
    ichido().handle(costly, async ({ payload, cost }) => {
      seen.push(await spent())
      cost(40)
      cost(Number(payload))
      return 'done'
    })
    const job = await ichido().submit(costly, 3, { estimatedCost: 50 })
    expect(await job.result()).toBe('done')
    expect(await spent()).toBe(3)
    const failing = await ichido().submit(costly, -1, { estimatedCost: 10 })
    expect(await thrownBy(failing.result())).toMatchObject({ name: 'JobFailed', code: 'RangeError' })
    expect(await spent()).toBe(13)
    expect(seen).toEqual([50, 13])
  })
})
