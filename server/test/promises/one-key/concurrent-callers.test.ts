import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { EmbeddedBus } from '../../../src/bus/embedded.ts'
import { realWorld } from '../../../src/node/world.ts'
import { DEFAULT_LIMITS } from '../../../src/services/deps.ts'
import { createServices, type Services } from '../../../src/services/index.ts'
import { silentMeter } from '../../../src/services/system/meter.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { openNode, sql, unique } from '../../../src/testing/store/store.ts'

/** Hazard 11: many callers with one key, on two nodes, create one job. */

const CALLERS = 200

let database: FreshDatabase
let nodes: { store: PostgresStore; services: Services }[] = []

beforeAll(async () => {
  database = await freshDatabase()
  nodes = await Promise.all([1, 2].map(openServices))
})

afterAll(async () => {
  for (const { store } of nodes) await store.close()
  await database.leave()
})

async function openServices() {
  const store = await openNode(database.url)
  const deps = { world: realWorld, store, bus: new EmbeddedBus(), meter: silentMeter, limits: DEFAULT_LIMITS }
  return { store, services: createServices(deps) }
}

function node(i: number) {
  const found = nodes[i % nodes.length]
  if (found === undefined) throw new Error('Two nodes are open')
  return found
}

async function submitPlain(userId: string, key: string): Promise<{ kinds: string[]; bodies: Set<string> }> {
  const caller = { userId, role: 'submitter' } as const
  const outcomes = await Promise.all(
    Array.from({ length: CALLERS }, (_, i) =>
      node(i).services.submission.submit(caller, { kind: 'work', payload: { b: 1, a: 2 } }, { key }),
    ),
  )
  const bodies = outcomes.map((outcome) => (outcome.kind === 'refused' ? outcome.refusal.code : outcome.body))
  return { kinds: outcomes.map(({ kind }) => kind).sort(), bodies: new Set(bodies) }
}

async function jobIds(userId: string): Promise<unknown[]> {
  const rows = await sql(node(0).store, 'SELECT id FROM ichido.jobs WHERE user_id = $1 ORDER BY id', userId)
  return rows.map(({ id }) => id)
}

const once = ['created', ...Array(CALLERS - 1).fill('replayed')]

test('200 callers with a new user and a new key get one job and identical bodies', async () => {
  for (let round = 0; round < size(3, 100); round++) {
    const userId = unique('user')
    const { kinds, bodies } = await submitPlain(userId, 'k')
    expect(kinds).toEqual(once)
    expect(bodies.size).toBe(1)
    expect(await jobIds(userId)).toHaveLength(1)
  }
})

test('200 callers with an expired key get one new job and identical bodies', async () => {
  for (let round = 0; round < size(3, 100); round++) {
    const userId = unique('user')
    const caller = { userId, role: 'submitter' } as const
    const first = await node(0).services.submission.submit(caller, { kind: 'work', payload: 'old' }, { key: 'k' })
    if (first.kind === 'refused') throw new Error(first.refusal.message)
    await node(0).services.jobs.cancel(caller, first.jobId)
    await sql(node(0).store, 'UPDATE ichido.idempotency_keys SET expires_at = now_ms() WHERE user_id = $1', userId)
    const { kinds, bodies } = await submitPlain(userId, 'k')
    expect(kinds).toEqual(once)
    expect(bodies.size).toBe(1)
    expect([...bodies][0]).not.toBe(first.body)
    expect(await jobIds(userId)).toHaveLength(2)
  }
})

test('with keys that expire during the calls, at most one job per key is active', async () => {
  const caller = { userId: unique('user'), role: 'submitter' } as const
  const input = { kind: 'work', payload: 1, key_ttl_hours: 1 / 3_600_000 }
  const answered = new Map<string, Set<string>>()
  for (let round = 0; round < size(15, 200); round++) {
    const outcomes = await Promise.all(
      Array.from({ length: 20 }, (_, i) => node(i).services.submission.submit(caller, input, { key: 'k' })),
    )
    for (const outcome of outcomes) {
      if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
      answered.set(outcome.jobId, (answered.get(outcome.jobId) ?? new Set()).add(outcome.body))
    }
    const active = await sql(
      node(0).store,
      `SELECT job_id FROM ichido.runs WHERE user_id = $1 AND state = 'PENDING'`,
      caller.userId,
    )
    expect(active, 'a key of one millisecond still names its job while that has not ended').toHaveLength(1)
    await node(round).services.jobs.cancel(caller, String(active[0]?.job_id))
  }
  for (const bodies of answered.values()) expect(bodies.size).toBe(1)
  expect((await jobIds(caller.userId)).length).toBe(answered.size)
})
