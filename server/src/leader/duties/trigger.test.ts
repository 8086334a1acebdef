import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Definition } from '../../core/schedule/definition.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import {
  deleteDefinition,
  pauseDefinition,
  resumeDefinition,
  updateDefinition,
} from '../../store/schedules/definitions.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { BY, content, jobsOf, tickAll } from '../../testing/nodes/ticker.ts'
import { defineOn, happen, triggerer, triggerLedger } from '../../testing/nodes/triggers.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { createRetain } from './retain.ts'

describe.each(ENGINES)('triggers on %s', (engine) => {
  let scene: LeaderScene
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  afterAll(() => scene.close())
  beforeEach(async () => {
    for (const table of ['job_definitions', 'triggers', 'trigger_outcomes']) {
      await sql(scene.store, `DELETE FROM ichido.${table}`)
    }
    await scene.clear()
  })

  const processAll = async (changes: Parameters<typeof triggerer>[1] = {}) => tickAll(await triggerer(scene, changes))
  const ledger = async (definition: Definition) =>
    (await triggerLedger(scene.store, definition)).map(({ outcome, reason }) =>
      reason === null ? outcome : `${outcome} ${reason}`,
    )
  /** Payloads of its jobs, in the order of their triggers. */
  const payloads = async ({ id }: Definition) =>
    (
      await sql(
        scene.store,
        `SELECT j.payload FROM ichido.jobs j JOIN ichido.trigger_outcomes o ON o.job_id = j.id
          WHERE j.definition_id = $1 ORDER BY o.triggered_at, o.trigger_id`,
        id,
      )
    ).map(({ payload }) => JSON.parse(String(payload)) as unknown)

  test('each trigger makes one job of each matching definition', async () => {
    const payload = JSON.stringify({ order: { $from: 'order.id' }, first: { $from: 'lines.0' }, note: 'as it is' })
    const all = await defineOn(scene.store, {}, { payload, queue: 'orders' })
    const { topic } = all.on
    const paid = await defineOn(scene.store, { topic, where: { 'order.state': 'paid' } })
    const elsewhere = await defineOn(scene.store)
    const ids = await happen(scene, topic, [
      { order: { id: 1, state: 'paid' }, lines: ['a', 'b'] },
      { order: { id: 2, state: 'open' }, lines: [{ sku: 'c' }] },
    ])
    expect(scene.woken()).toEqual(['triggers'])
    await processAll()
    expect(scene.woken()).toContain('queue:orders')
    expect(await payloads(all)).toEqual([
      { order: 1, first: 'a', note: 'as it is' },
      { order: 2, first: { sku: 'c' }, note: 'as it is' },
    ])
    expect((await triggerLedger(scene.store, all)).map(({ trigger_id }) => trigger_id)).toEqual(ids)
    expect([await ledger(paid), await ledger(elsewhere)]).toEqual([['job'], []])
    await processAll()
    expect(await jobsOf(scene.store, all)).toHaveLength(2)
    const { data } = await scene.services.triggers.list(
      LOCAL_ADMIN,
      { topic, definition: paid.name, state: 'processed' },
      10,
      null,
    )
    expect(data).toMatchObject([{ trigger_id: ids[0], outcomes: [{ outcome: 'job' }, { outcome: 'job' }] }])
  })

  test('a missing field or a too large payload is a recorded skip', async () => {
    const payload = JSON.stringify({ deep: [{ $from: 'a\\.b.c' }] })
    const definition = await defineOn(scene.store, {}, { payload })
    const large = await defineOn(
      scene.store,
      { topic: definition.on.topic },
      {
        payload: JSON.stringify(Array(5).fill({ $from: '' })),
      },
    )
    await happen(scene, definition.on.topic, [
      { 'a.b': { c: null } },
      { 'a.b': {} },
      { 'a.b': { c: 'x'.repeat(250_000) } },
    ])
    await processAll()
    expect(await payloads(definition)).toMatchObject([{ deep: [null] }, {}])
    expect(await ledger(definition)).toEqual(['job', 'skipped missing_field', 'job'])
    expect((await triggerLedger(scene.store, definition))[1]).toMatchObject({ field: 'a\\.b.c', job_id: null })
    expect(await ledger(large)).toEqual(['job', 'job', 'skipped payload_too_large'])
  })

  test('a pause keeps triggers in their order, or skips them, as the definition says', async () => {
    const payload = JSON.stringify({ $from: 'n' })
    const keep = await defineOn(scene.store, {}, { payload })
    const { topic } = keep.on
    const skip = await defineOn(scene.store, { topic, whenPaused: 'skip' }, { payload })
    for (const { name } of [keep, skip]) await scene.store.write(pauseDefinition(name, BY()))
    await happen(
      scene,
      topic,
      [1, 2, 3].map((n) => ({ n })),
    )
    await processAll()
    expect(await ledger(keep)).toEqual(Array(3).fill('waiting_pause'))
    expect(await ledger(skip)).toEqual(Array(3).fill('skipped paused'))
    for (const { name } of [keep, skip]) await scene.store.write(resumeDefinition(name, BY()))
    await scene.pass(1_000)
    await happen(scene, topic, [{ n: 4 }])
    await processAll({ batchMax: 2 })
    expect(await payloads(keep)).toEqual([1, 2, 3, 4])
    expect(await payloads(skip)).toEqual([4])
  })

  test('a clock that goes back after a definition was made loses no trigger', async () => {
    const definition = await defineOn(scene.store)
    await sql(scene.store, 'UPDATE ichido.job_definitions SET created_at = created_at + 600000')
    await happen(scene, definition.on.topic, [{}, {}])
    await processAll()
    expect(await ledger(definition)).toEqual(['job', 'job'])
  })

  test('an unprocessed trigger uses the definition of the later time', async () => {
    const changed = await defineOn(scene.store)
    const { topic } = changed.on
    const deleted = await defineOn(scene.store, { topic })
    await happen(scene, topic)
    const on = { ...changed.on, where: {} }
    await scene.store.write(updateDefinition(changed.name, null, content(null, { on, payload: '"new"' }), BY()))
    await scene.store.write(deleteDefinition(deleted.name, BY()))
    await scene.pass(10)
    const later = await defineOn(scene.store, { topic })
    await processAll()
    expect(await payloads(changed)).toEqual(['new'])
    expect([await ledger(deleted), await ledger(later)]).toEqual([[], []])
  })

  test('at a full quota triggers wait, first come first served', async () => {
    const definition = await defineOn(scene.store, {}, { payload: JSON.stringify({ $from: 'n' }) })
    await sql(
      scene.store,
      `INSERT INTO ichido.quotas (user_id, custom, max_concurrent, period, updated_at) VALUES ($1, true, 1, 'month', 0)`,
      definition.userId,
    )
    await happen(
      scene,
      definition.on.topic,
      [1, 2, 3].map((n) => ({ n })),
    )
    await processAll()
    expect(await ledger(definition)).toEqual(['job', 'waiting_quota quota_exceeded', 'waiting_quota quota_exceeded'])
    const end = () =>
      sql(scene.store, `UPDATE ichido.runs SET state = 'SUCCEEDED' WHERE user_id = $1`, definition.userId)
    await end()
    await scene.pass(1_000)
    await happen(scene, definition.on.topic, [{ n: 4 }])
    await processAll()
    expect(await payloads(definition)).toEqual([1, 2])
    for (const _ of [3, 4]) {
      await end()
      await processAll()
    }
    expect(await payloads(definition)).toEqual([1, 2, 3, 4])
  })

  test('a waiting trigger is decided again by the current definition', async () => {
    const [changed, deleted, ruleless] = [
      await defineOn(scene.store),
      await defineOn(scene.store),
      await defineOn(scene.store),
    ]
    for (const { name, on } of [changed, deleted, ruleless]) {
      await scene.store.write(pauseDefinition(name, BY()))
      await happen(scene, on.topic, [{ n: 1 }, { n: 2 }])
    }
    await processAll()
    const waiting = () => scene.services.triggers.counts()
    expect(await waiting()).toMatchObject({ unprocessed: 0, waiting: 6 })
    const on = { ...changed.on, where: { n: 2 } }
    await scene.store.write(updateDefinition(changed.name, null, content(null, { on, payload: '"new"' }), BY()))
    await scene.store.write(updateDefinition(ruleless.name, null, content(null), BY()))
    await scene.store.write(deleteDefinition(deleted.name, BY()))
    for (const { name } of [changed, ruleless]) await scene.store.write(resumeDefinition(name, BY()))
    await processAll()
    expect(await ledger(changed)).toEqual(['skipped changed', 'job'])
    expect(await payloads(changed)).toEqual(['new'])
    expect(await ledger(ruleless)).toEqual(Array(2).fill('skipped changed'))
    expect(await ledger(deleted)).toEqual(Array(2).fill('skipped deleted'))
    expect(await waiting()).toMatchObject({ waiting: 0 })
  })

  test('many definitions and much data are processed in bounded batches', async () => {
    const first = await defineOn(scene.store, {}, { payload: '{"all":{"$from":""}}' })
    const others = await Promise.all([1, 2, 3].map(() => defineOn(scene.store, { topic: first.on.topic })))
    await happen(scene, first.on.topic, Array(40).fill('x'.repeat(200_000)))
    const tick = await triggerer(scene, { batchMax: 60 })
    const left = async () => (await scene.services.triggers.counts()).unprocessed
    for (let before = 40; before > 0; before = await left()) {
      expect(await tick()).toBe(0)
      const done = before - (await left())
      expect(done).toBeGreaterThan(0)
      expect(done * 4, 'jobs of a batch').toBeLessThanOrEqual(60)
      expect(done * 5 * 200_000, 'characters of a batch').toBeLessThanOrEqual(4 * 1024 * 1024)
    }
    for (const definition of [first, ...others]) expect(await jobsOf(scene.store, definition)).toHaveLength(40)
  })

  test('large payloads from little data are bounded, too, and stay in order', async () => {
    // Six jobs of 1 MB, from templates and data of 4 KB.
    const payload = JSON.stringify([{ $from: 'n' }, ...Array(250).fill({ $from: 'text' })])
    const data = [1, 2, 3, 4, 5, 6].map((n) => ({ n, text: 'x'.repeat(4_000) }))
    const told = await defineOn(scene.store, {}, { payload })
    const kept = await defineOn(scene.store, {}, { payload })
    await scene.store.write(pauseDefinition(kept.name, BY()))
    await happen(scene, kept.on.topic, data)
    await processAll()
    await scene.store.write(resumeDefinition(kept.name, BY()))
    const tick = await triggerer(scene)
    await happen(scene, told.on.topic, data)
    await tick()
    const first = [...Array(5).fill('job'), 'waiting_turn']
    expect([await ledger(told), await ledger(kept)]).toEqual([first, first])
    await tickAll(tick)
    for (const definition of [told, kept]) {
      expect(await payloads(definition)).toMatchObject(data.map(({ n }) => ({ 0: n })))
    }
  })

  test('after a restart the next leader continues', async () => {
    const definition = await defineOn(scene.store)
    await happen(scene, definition.on.topic, Array(5).fill({}))
    const dying = await triggerer(scene, { batchMax: 2 })
    await dying()
    await processAll()
    expect(await dying(), 'a leader of the past does nothing').toBeNull()
    expect(await ledger(definition)).toEqual(Array(5).fill('job'))
  })

  test('retention removes triggers and their keys, but no waiting ones', async () => {
    const definition = await defineOn(scene.store)
    const { topic } = definition.on
    const item = { topic, dedupe_key: 'once', data: {} }
    const record = async () => (await scene.services.triggers.record(LOCAL_ADMIN, [item]))[0]
    const retain = async () =>
      createRetain({ ...scene.services.deps, world: scene.world, store: scene.store }, await seize(scene.store))()
    const WEEK_MS = 7 * 24 * 3_600_000
    const first = await record()
    await scene.pass(WEEK_MS)
    await retain()
    expect(await record(), 'it was not processed').toEqual({ ...first, duplicate: true })
    await scene.store.write(pauseDefinition(definition.name, BY()))
    await processAll()
    await scene.pass(WEEK_MS)
    await retain()
    expect(await record(), 'it waits').toEqual({ ...first, duplicate: true })
    await scene.store.write(resumeDefinition(definition.name, BY()))
    await processAll()
    await scene.pass(WEEK_MS - 1_000)
    await retain()
    expect(await record()).toEqual({ ...first, duplicate: true })
    await scene.pass(1_000)
    await retain()
    expect(await triggerLedger(scene.store, definition)).toEqual([])
    expect(await record()).toMatchObject({ duplicate: false })
    await processAll()
    expect(await jobsOf(scene.store, definition)).toHaveLength(2)
  })
})
