import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { World } from '@ichido/sdk/world'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { SubmitInput } from '../../contract/submit.ts'
import type { Caller } from '../../core/limits/roles.ts'
import { createPromote } from '../../leader/duties/promote.ts'
import { realWorld } from '../../node/world.ts'
import type { PostgresStore } from '../../store/engines/postgres/postgres.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import type { Store } from '../../store/port.ts'
import { callerOf } from '../../testing/services/each-services.ts'
import { openNode, sql, unique } from '../../testing/store/store.ts'
import { DEFAULT_LIMITS } from '../deps.ts'
import { createServices, type Services } from '../index.ts'
import { silentMeter } from '../system/meter.ts'

/** Nodes that start at different times order the jobs of a queue in the same way. */

const HOUR_MS = 3_600_000

function nodeOn(store: Store, world: World = realWorld): Services {
  return createServices({ meter: silentMeter, limits: DEFAULT_LIMITS, world, bus: new EmbeddedBus(), store })
}

/** A node that starts this much later than the others. */
const laterBy = (ms: number): World => ({ ...realWorld, now: () => realWorld.now() + ms })

/** The test moves the monotonic clock, which sets the age of a node's cache. */
function aging() {
  let ms = 0
  const world: World = { ...realWorld, monotonic: () => realWorld.monotonic() + ms }
  return {
    world,
    pass: (by: number) => {
      ms += by
    },
  }
}

async function submit(node: Services, caller: Caller, input: Partial<SubmitInput>): Promise<string> {
  const outcome = await node.submission.submit(caller, { kind: 'work', ...input }, { key: null })
  if (outcome.kind === 'refused') throw new Error(outcome.refusal.message)
  return outcome.jobId
}

async function submitMany(node: Services, caller: Caller, queue: string, count: number): Promise<string[]> {
  const inputs = Array.from({ length: count }, () => ({ input: { kind: 'work', queue }, options: { key: null } }))
  const settled = await node.submission.submitMany(caller, inputs, (one) => one)
  return settled.map((one) => {
    if (one.status === 'rejected' || one.value.kind === 'refused') throw new Error('Refused')
    return one.value.jobId
  })
}

async function lease(node: Services, queue: string, max: number): Promise<string[]> {
  const leases = await node.runs.lease('w', { queues: [queue], kinds: ['work'], max, waitMs: 0 })
  return leases.map(({ job_id }) => job_id)
}

describe('two nodes on PostgreSQL', () => {
  let opened: { url: string; stores: PostgresStore[]; leave: () => Promise<void> } | undefined
  const store = (i: number): PostgresStore => opened?.stores[i] ?? unopened()
  beforeAll(async () => {
    const { url, leave } = await freshDatabase()
    opened = { url, stores: [await openNode(url), await openNode(url)], leave }
  })
  afterAll(async () => {
    for (const store of opened?.stores ?? []) await store.close()
    await opened?.leave()
  })

  test('jobs of a restarted node do not wait behind later ones of their user', async () => {
    const [queue, caller] = [unique('queue'), callerOf('submitter')]
    const old = nodeOn(store(0))
    const backlog = await submitMany(old, caller, queue, 30)
    expect(await lease(old, queue, 10)).toEqual(backlog.slice(0, 10))
    const restarted = nodeOn(store(1), laterBy(HOUR_MS))
    const first = await submitMany(restarted, caller, queue, 20)
    const aged = aging()
    const later = await submitMany(nodeOn(store(0), aged.world), caller, queue, 40)
    expect(await lease(old, queue, 200)).toEqual([...backlog.slice(10), ...first, ...later])
  })

  test('jobs of a restarted node do not wait behind later jobs of others', async () => {
    const [queue, heavy, light] = [unique('queue'), callerOf('submitter'), callerOf('submitter')]
    const old = nodeOn(store(0))
    await submitMany(old, heavy, queue, 30)
    await lease(old, queue, 10)
    const [one] = await submitMany(nodeOn(store(1), laterBy(HOUR_MS)), light, queue, 1)
    expect(await lease(old, queue, 4)).toContain(one)
  })

  test('jobs of one user on two nodes keep their order after a second', async () => {
    const [queue, caller] = [unique('queue'), callerOf('submitter')]
    const worlds = [aging(), aging()]
    const nodes = worlds.map(({ world }, i) => nodeOn(store(i), world))
    const expected: string[] = []
    for (let round = 0; round < 6; round++) {
      const node = nodes[round % 2] ?? unopened()
      // Uneven, so that a node that counted by itself would fall behind.
      expected.push(...(await submitMany(node, caller, queue, round % 2 === 0 ? 8 : 2)))
      for (const { pass } of worlds) pass(1_000)
    }
    expect(await lease(nodes[0] ?? unopened(), queue, 100)).toEqual(expected)
  })

  test('a delayed run comes behind later jobs of its user on another node', async () => {
    const [queue, caller] = [unique('queue'), callerOf('submitter')]
    const [a, b] = [nodeOn(store(0)), nodeOn(store(1))]
    const delayed = await submit(a, caller, { queue, delay_seconds: 3_600 })
    const backlog = await submitMany(a, caller, queue, 5)
    await sql(store(0), 'UPDATE ichido.runs SET run_at = run_at - $2 WHERE job_id = $1', delayed, HOUR_MS)
    await createPromote({ ...b.deps, fairTags: b.fairTags })()
    expect(await lease(a, queue, 100)).toEqual([...backlog, delayed])
  })

  test('a job that follows a promoted run on the same node comes behind it', async () => {
    const [queue, caller] = [unique('queue'), callerOf('submitter')]
    const node = nodeOn(store(0))
    const delayed = await submit(node, caller, { queue, delay_seconds: 3_600 })
    const backlog = await submitMany(node, caller, queue, 5)
    await sql(store(0), 'UPDATE ichido.runs SET run_at = run_at - $2 WHERE job_id = $1', delayed, HOUR_MS)
    await createPromote({ ...node.deps, fairTags: node.fairTags })()
    const later = await submitMany(node, caller, queue, 2)
    expect(await lease(node, queue, 100)).toEqual([...backlog, delayed, ...later])
  })

  test('jobs in open transactions of one user keep their order', async () => {
    const [queue, caller] = [unique('queue'), callerOf('submitter')]
    const node = nodeOn(store(0))
    // The first job of a user makes a row, which the other transactions would wait for.
    await submit(node, caller, { queue: unique('another') })
    const clients = [1, 2, 3].map(() => new pg.Client(opened?.url))
    const expected: string[] = []
    for (const client of clients) {
      await client.connect()
      await client.query('BEGIN')
      const write: Store['write'] = (command) => store(0).writeIn(client, command)
      const outcome = await node.submission.submitIn(write, caller, { kind: 'work', queue }, { key: null })
      if (outcome.kind !== 'refused') expected.push(outcome.jobId)
    }
    for (const client of clients.toReversed()) {
      await client.query('COMMIT')
      await client.end()
    }
    const tags = await sql(store(0), 'SELECT fair_tag FROM ichido.runs WHERE queue = $1 ORDER BY fair_tag', queue)
    expect(tags.map(({ fair_tag }) => fair_tag)).toEqual([1, 2, 3])
    expect(await lease(node, queue, 100)).toEqual(expected)
  })

  test('a node without leases learns the last leased tags of others', async () => {
    const [queue, heavy, light] = [unique('queue'), callerOf('submitter'), callerOf('submitter')]
    const [worker, front] = [nodeOn(store(0)), nodeOn(store(1))]
    // No worker serves this kind, so the queue continues without it.
    await submit(front, light, { queue, kind: 'unserved' })
    await submitMany(front, heavy, queue, 40)
    await lease(worker, queue, 30)
    await worker.fairTags.share()
    const [first, second] = await submitMany(nodeOn(store(1)), callerOf('submitter'), queue, 2)
    const next = await lease(worker, queue, 4)
    expect([next.includes(first ?? ''), next.includes(second ?? '')]).toEqual([true, true])
    const tags = await sql(store(0), 'SELECT fair_tag FROM ichido.runs WHERE job_id = $1', first ?? '')
    expect(tags, 'behind the thirty that were leased').toEqual([{ fair_tag: 32 }])
  })
})

test('a restart on SQLite keeps the order of a backlog and its place among the others', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'ichido-fair-'))
  const [queue, heavy, light] = [unique('queue'), callerOf('submitter'), callerOf('submitter')]
  const open = () => openSqlite({ dataDir, now: realWorld.now })
  let store = open()
  try {
    const before = nodeOn(store)
    const backlog = await submitMany(before, heavy, queue, 30)
    await lease(before, queue, 10)
    await before.fairTags.share()
    await store.close()
    store = open()
    const after = nodeOn(store, laterBy(HOUR_MS))
    const later = [...(await submitMany(after, heavy, queue, 5)), ...(await submitMany(after, heavy, queue, 5))]
    const [one] = await submitMany(after, light, queue, 1)
    const first = await lease(after, queue, 3)
    expect(first).toContain(one)
    const rest = [...first.filter((id) => id !== one), ...(await lease(after, queue, 100))]
    expect(rest).toEqual([...backlog.slice(10), ...later])
  } finally {
    await store.close()
    rmSync(dataDir, { recursive: true })
  }
})

function unopened(): never {
  throw new Error('The stores are open while tests run')
}
