import { afterAll, beforeAll, expect, test } from 'vitest'
import { TcpProxy } from '../../../../../scripts/testing/proxy.ts'
import { type FreshDatabase, freshDatabase } from '../../../../../scripts/testing/services.ts'
import { StoreUnavailable } from '../../../core/node/store-errors.ts'
import { readClock } from '../../system/leadership.ts'
import { openPostgres, type PostgresStore } from './postgres.ts'

/** A database that goes away, in a time that passes only while somebody waits for it. */

let database: FreshDatabase
let proxy: TcpProxy
let store: PostgresStore
let passedMs = 0
let onSleep = () => {}

beforeAll(async () => {
  database = await freshDatabase()
  const proxied = await TcpProxy.before(database.tcpUrl)
  proxy = proxied.proxy
  store = await openPostgres({
    url: proxied.url,
    now: Date.now,
    monotonic: () => passedMs,
    async sleep(ms) {
      passedMs += ms
      onSleep()
    },
  })
})
afterAll(async () => {
  await store.close()
  await proxy.close()
  await database.leave()
})

const away = () => {
  proxy.rule = () => 'cut'
  proxy.cutAll()
}
const back = () => {
  proxy.rule = () => 'pass'
}
/** How long a call has waited, and what it heard. */
async function ask(): Promise<[number, unknown]> {
  const before = passedMs
  const heard = await store.read(readClock()).then(
    () => 'answered',
    (error: unknown) => error,
  )
  return [passedMs - before, heard]
}

test('calls survive a restart, and later calls of a long outage fail at once', async () => {
  expect(await ask()).toEqual([0, 'answered'])
  away()
  onSleep = () => void (passedMs > 10_000 && back())
  const [waitedMs, heard] = await ask()
  expect(heard).toBe('answered')
  expect(waitedMs).toBeGreaterThan(9_000)

  onSleep = () => {}
  away()
  const [firstMs, first] = await ask()
  expect(first).toBeInstanceOf(StoreUnavailable)
  expect(firstMs).toBeGreaterThan(13_000)
  const [laterMs, later] = await ask()
  expect(later).toBeInstanceOf(StoreUnavailable)
  expect(laterMs).toBeLessThan(1_000)

  back()
  expect(await ask()).toEqual([0, 'answered'])
  away()
  expect((await ask())[0], 'the next outage has its own time').toBeGreaterThan(13_000)
})

test('a command that may have committed is tried for its own full time', async () => {
  away()
  await ask()
  expect((await ask())[0]).toBeLessThan(1_000)
  // It is back, but for the answers to what it is asked.
  const isAsked = (data: Buffer) => data.includes('clock_timestamp')
  proxy.rule = ({ direction, data }) => (direction === 'up' && isAsked(data) ? 'cut' : 'pass')
  const [waitedMs, heard] = await ask()
  expect(heard).toBeInstanceOf(StoreUnavailable)
  expect(waitedMs).toBeGreaterThan(13_000)
  back()
})
