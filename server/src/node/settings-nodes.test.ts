import type { World } from '@ichido/sdk/world'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import type { FixedSettings } from '../core/limits/settings.ts'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { silentMeter } from '../services/system/meter.ts'
import { thrownBy } from '../testing/services/embedded.ts'
import { sql, until } from '../testing/store/store.ts'
import { type ControlNode, startNode } from './start-node.ts'
import { realWorld } from './world.ts'

/** Two nodes on one PostgreSQL: a change on one takes effect on both, without a restart. */

const POLL_MS = 2_000

let database: FreshDatabase
const nodes: ControlNode[] = []
beforeAll(async () => {
  database = await freshDatabase()
})
afterAll(async () => {
  await Promise.all(nodes.map((node) => node.close()))
  await database.leave()
})

async function start(changes: { fixed?: FixedSettings; world?: World; looped?: (name: string) => void } = {}) {
  const { fixed, world = realWorld, looped = () => {} } = changes
  const storage = { databaseUrl: database.url }
  const node = await startNode({
    storage,
    world,
    meter: { ...silentMeter, looped },
    allowNoFsync: false,
    fixed,
    onTrouble: () => {},
  })
  nodes.push(node)
  return node.services
}

test('a change reaches all nodes, also without a wake-up', async () => {
  const deaf: World = {
    ...realWorld,
    // Nothing wakes it but the change itself.
    after: (ms, callback) => (ms === POLL_MS ? () => {} : realWorld.after(ms, callback)),
  }
  const [a, b] = [await start(), await start({ world: deaf })]
  await a.settings.put(LOCAL_ADMIN, 'operation_batch_max', 77)
  expect(a.settings.get('operation_batch_max')).toBe(77)
  await until('the other node to hear of it', async () => b.settings.get('operation_batch_max') === 77)
  await b.settings.reset(LOCAL_ADMIN, 'operation_batch_max')
  await until('it to be back', async () => a.settings.get('operation_batch_max') === 200)

  // A wake-up that got lost.
  await a.settings.put(LOCAL_ADMIN, 'operation_batch_max', 5)
  await sql(a.deps.store, "UPDATE ichido.settings SET value = '6' WHERE name = 'operation_batch_max'")
  await until('the node to look by itself', async () => a.settings.get('operation_batch_max') === 6)
})

test('a waiting loop notices a shorter interval at once, on either node', async () => {
  const a = await start()
  await a.settings.put(LOCAL_ADMIN, 'promote_interval_seconds', 30)
  await a.settings.put(LOCAL_ADMIN, 'reap_interval_seconds', 30)
  const ticks: Record<string, number> = {}
  const b = await start({
    looped(name) {
      ticks[name] = (ticks[name] ?? 0) + 1
    },
  })
  expect(b.settings.get('promote_interval_seconds')).toBe(30)
  await until('its first tick', async () => ticks.promote)
  await a.settings.put(LOCAL_ADMIN, 'promote_interval_seconds', 0.05)
  await until('many more', async () => (ticks.promote ?? 0) > 10)
  // It leads once all others are gone, and its duties notice changes, too.
  await Promise.all(nodes.splice(0, nodes.length - 1).map((node) => node.close()))
  await until('it to lead', async () => ticks.reap)
  await b.settings.put(LOCAL_ADMIN, 'reap_interval_seconds', 0.05)
  await until('it to reap often', async () => (ticks.reap ?? 0) > 10)
  expect(Object.keys(ticks), 'every loop says when it ran').toEqual(
    expect.arrayContaining(['settings', 'elect', 'promote', 'expire-uploads', 'reap', 'operate', 'alert']),
  )
})

test('the environment overrides the stored value, on its node', async () => {
  const [a, b] = [await start(), await start({ fixed: { reap_batch_max: 3 } })]
  await a.settings.put(LOCAL_ADMIN, 'reap_batch_max', 9)
  await a.settings.put(LOCAL_ADMIN, 'reassign_after_seconds', 20)
  await until('the other change', async () => b.settings.get('reassign_after_seconds') === 20)
  expect([a.settings.get('reap_batch_max'), b.settings.get('reap_batch_max')]).toEqual([9, 3])
  expect(await b.settings.show('reap_batch_max')).toMatchObject({ value: 3, source: 'environment', default: 200 })
  for (const change of [
    b.settings.put(LOCAL_ADMIN, 'reap_batch_max', 4),
    b.settings.reset(LOCAL_ADMIN, 'reap_batch_max'),
  ]) {
    expect(await thrownBy(change)).toMatchObject({
      code: 'SETTING_FIXED',
      message: 'reap_batch_max is fixed by the environment of this node: REAP_BATCH_MAX=3',
      details: { name: 'reap_batch_max', variable: 'REAP_BATCH_MAX' },
    })
  }
  expect(await a.settings.show('reap_batch_max')).toMatchObject({ value: 9, source: 'stored' })
})
