import { afterAll, beforeAll, expect, test } from 'vitest'
import { privatePostgres } from '../../../scripts/testing/services.ts'
import { StoreUnavailable } from '../core/node/store-errors.ts'
import { type Embedded, embedded } from '../testing/services/embedded.ts'
import { until } from '../testing/store/store.ts'
import { defineKind } from './index.ts'

let postgres: Awaited<ReturnType<typeof privatePostgres>>
let ichido: Embedded
beforeAll(async () => {
  postgres = await privatePostgres()
  ichido = await embedded({ databaseUrl: postgres.url })
})
afterAll(async () => {
  await ichido.close()
  await postgres.stop()
})

test('a run that ends while PostgreSQL is down is reported when it is back', async () => {
  const kind = defineKind('work')
  const began = Promise.withResolvers<void>()
  const end = Promise.withResolvers<string>()
  let calls = 0
  ichido.handle(kind, () => {
    calls++
    began.resolve()
    return calls === 1 ? end.promise : 'next'
  })
  const job = await ichido.submit(kind, 1, { key: 'first' })
  await began.promise
  await postgres.kill9()
  end.resolve('done')
  const next = ichido.submit(kind, 2, { key: 'second' })
  await until('the loss to be noticed', async () => ichido.troubles.length > 0)
  // The listener notices first, so the test need not wait for a call to time out.
  expect(ichido.troubles[0]).toBeInstanceOf(StoreUnavailable)
  await postgres.restart()

  expect(await (await next).result()).toBe('next')
  expect(await job.result()).toBe('done')
  expect(await job.get()).toMatchObject({ state: 'SUCCEEDED', attempt: 1, retry_count: 0 })
  expect(calls).toBe(2)
  expect(await ichido.submit(kind, 1, { key: 'first' })).toMatchObject({ id: job.id, replayed: true })
})
