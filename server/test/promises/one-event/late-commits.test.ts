import { sleep } from '@ichido/sdk/world'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { realWorld } from '../../../src/node/world.ts'
import { readNamed } from '../../../src/store/events/all-events.sql.ts'
import {
  EVERY_EVENT,
  type EventPlace,
  FIRST_EVENT,
  findAllEvents,
  findEventNames,
  findLastPlace,
  findNamed,
} from '../../../src/store/events/all-events.ts'
import { findEvents } from '../../../src/store/events/events.ts'
import { type PublishItem, publishBatch, raisePublishers, readPublished } from '../../../src/store/events/publish.ts'
import type { Leased } from '../../../src/store/leasing/lease-runs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { insertBulk } from '../../../src/testing/store/bulk.ts'
import { keptPlan, nodes as nodesOf, rowsTouched, waysInto, writePlans } from '../../../src/testing/store/explain.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { sql, until } from '../../../src/testing/store/store.ts'

/** Hazard 13: readers skip events that commit late. A reader with a cursor, of one job or of all, sees every event once. */

const nodes = twoNodes()

function publish(scene: Scene, lease: Leased, ...seqs: number[]): PublishItem {
  return { ...scene.startItem(lease), events: seqs.map((seq) => ({ stage: 'progress', seq, data: String(seq) })) }
}

/** Reads the events of all jobs, again and again, from its last cursor. */
class Reader {
  readonly seen: string[] = []
  #place: EventPlace

  constructor(place: EventPlace) {
    this.#place = place
  }

  async read(): Promise<void> {
    const page = await nodes.b().write(findAllEvents(this.#place, EVERY_EVENT, 10))
    if (page === null) throw new Error('The place should be known')
    const names = (await nodes.b().write(findEventNames(this.#place, 10)))?.events.slice(0, page.events.length)
    expect(names?.map(({ place }) => place)).toEqual(page.events.map(({ place }) => place))
    expect(new Set(await nodes.b().write(findNamed(names ?? [])))).toEqual(new Set(page.events))
    this.seen.push(...page.events.map(({ jobId, n }) => `${jobId} ${n}`))
    this.#place = page.next
  }

  /** Other transactions may be open on the same server. */
  async readUntil(count: number): Promise<void> {
    await until(`${count} events`, async () => {
      await this.read()
      return this.seen.length >= count
    })
  }
}

async function place(): Promise<EventPlace> {
  return nodes.b().read(findLastPlace())
}

describe('one of two publishers commits late', () => {
  test('a reader of all jobs waits for the late commit and skips nothing', async () => {
    const scene = new Scene(nodes.a())
    const [late, early] = [await scene.running(), await scene.running()]
    const reader = new Reader(await place())
    const gate = await nodes.gate()
    const held = nodes.a().write(gate.hold(publishBatch([publish(scene, late, 1)], true)))
    await gate.reached()
    await nodes.b().write(publishBatch([publish(scene, early, 1, 2)], true))
    const until = performance.now() + size(300, 2_000)
    while (performance.now() < until) {
      await reader.read()
      await sleep(realWorld, 20)
    }
    expect(reader.seen.filter((event) => event.endsWith(' 3'))).toEqual([])
    await gate.open()
    await held
    await reader.readUntil(3)
    const published = [`${late.jobId} 3`, `${early.jobId} 3`, `${early.jobId} 4`]
    expect(reader.seen.filter((event) => / [34]$/.test(event)).toSorted()).toEqual(published.toSorted())
  })

  test('a second publisher of the same job waits, and the cursors follow the commits', async () => {
    const scene = new Scene(nodes.a())
    const lease = await scene.running()
    const seen = async () => (await scene.events(lease.jobId)).slice(2)
    const gate = await nodes.gate()
    const first = nodes.a().write(gate.hold(publishBatch([publish(scene, lease, 2)], true)))
    await gate.reached()
    const second = nodes.b().write(publishBatch([publish(scene, lease, 1, 2)], true))
    await gate.someoneWaits()
    expect(await seen()).toEqual([])
    await gate.open()
    expect(await first).toMatchObject([{ events: [{ n: 3 }] }])
    expect(await second).toMatchObject([{ events: [{ n: 4 }, null] }])
    expect(await seen()).toEqual([2, 1])
  })
})

test('two nodes publish batches for the same jobs, and a reader sees each event once', async () => {
  const scene = new Scene(nodes.a())
  const leases: Leased[] = []
  for (let i = 0; i < 5; i++) leases.push(await scene.running())
  const reader = new Reader(await place())
  const rounds = size(15, 200)
  let publishing = true
  const seqs = Array.from({ length: rounds }, (_, i) => i + 1)
  const publishers = [nodes.a(), nodes.b(), nodes.a(), nodes.b()].map(async (node) => {
    let accepted = 0
    for (const seq of seqs) {
      const items = leases.toSorted(() => Math.random() - 0.5).map((lease) => publish(scene, lease, seq, seq + 1))
      for (const outcome of await node.write(publishBatch(items, true))) {
        if (outcome.kind !== 'stored') throw new Error(`It was ${outcome.kind}`)
        accepted += outcome.events.filter((event) => event !== null).length
      }
    }
    return accepted
  })
  const reading = (async () => {
    while (publishing) await reader.read()
  })()
  const accepted = await Promise.all(publishers)
  publishing = false
  await reading
  const each = rounds + 1
  expect(accepted.reduce((a, b) => a + b)).toBe(leases.length * each)
  const own = () => reader.seen.filter((event) => leases.some(({ jobId }) => event.startsWith(jobId)))
  await until('all events', async () => {
    await reader.read()
    return own().filter((event) => Number(event.split(' ')[1]) > 2).length >= leases.length * each
  })
  expect(new Set(reader.seen).size).toBe(reader.seen.length)
  for (const { jobId } of leases) {
    const events = (await nodes.a().read(findEvents(jobId, 0, 10_000)))?.events ?? []
    expect(events.map(({ n }) => n)).toEqual(Array.from({ length: each + 2 }, (_, i) => i + 1))
  }
})

test('only one of 64 publishers of the same event is told that its event was stored', async () => {
  const scene = new Scene(nodes.a())
  const lease = await scene.running()
  const racers = Array.from({ length: 64 }, (_, i) => (i % 2 === 0 ? nodes.a() : nodes.b()))
  const outcomes = await Promise.all(racers.map((node) => node.write(publishBatch([publish(scene, lease, 7)], true))))
  expect(
    outcomes.flatMap(([outcome]) => (outcome?.kind === 'stored' ? outcome.events : [])).filter(Boolean),
  ).toHaveLength(1)
  expect((await scene.events(lease.jobId)).slice(2)).toEqual([7])
})

test('publishers and published events are found by index, even in an empty store', async () => {
  const raised = await keptPlan(nodes.a(), raisePublishers)
  expect([waysInto(raised, 'held'), waysInto(raised, 'jobs')]).toEqual([['held_pkey'], ['jobs_pkey']])
  const joins = nodesOf(raised).filter((node) => node['Node Type'] === 'Nested Loop')
  // The items lead to the runs, and these to their jobs. The plan lists the CTEs before the two sides of a join.
  const sides = joins.map(({ Plans }) => Plans?.slice(-2).map((plan) => plan['Node Type']))
  expect(sides).toEqual(Array(2).fill(['CTE Scan', 'Index Scan']))
  expect(waysInto(await keptPlan(nodes.a(), readPublished), 'events')).toEqual(['events_identity'])
  const named = await keptPlan(nodes.a(), readNamed)
  expect(new Set([...waysInto(named, 'events'), ...waysInto(named, 'jobs')])).toEqual(
    new Set(['events_pkey', 'jobs_pkey']),
  )
})

test('reading a page of a large event table touches only the rows of the page', async () => {
  const store = nodes.a()
  const [job] = await insertBulk(store, { count: 1, state: 'RUNNING' })
  const [transactions, each] = [size(80, 1_000), 1_000]
  let middle = FIRST_EVENT
  for (let i = 0; i < transactions; i++) {
    if (i === transactions / 2) middle = await place()
    await sql(
      store,
      `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
        SELECT $1, $2 + s.n, 'progress', $2 + s.n, 'work', '{"percent":40,"message":"as much as an event has to say"}', 0
        FROM generate_series(1, ${each}) AS s(n)`,
      job?.jobId ?? '',
      i * each + 10,
    )
  }
  for (const after of [middle, { ...middle, tx: middle.tx + 1 }, await place()]) {
    for (const plans of [
      await writePlans(store, findAllEvents(after, EVERY_EVENT, 100)),
      await writePlans(store, findEventNames(after, 100)),
    ]) {
      const windows = plans.filter((plan) => waysInto(plan, 'events').length > 0)
      for (const plan of windows)
        expect(waysInto(plan, 'events').filter((way) => way !== 'events_pkey')).toEqual(['events_tx'])
      const touched = plans.map(rowsTouched).reduce((a, b) => a + b, 0)
      expect(touched).toBeLessThan(20 * each)
      expect(windows.flatMap(nodesOf).map((node) => node['Node Type'])).not.toContain('Seq Scan')
    }
  }
})
