import { randomBytes } from 'node:crypto'
import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { BadValue } from '../../../src/core/node/store-errors.ts'
import { realWorld } from '../../../src/node/world.ts'
import { Batcher } from '../../../src/services/batching/batcher.ts'
import { type FinishItem, type FinishOutcome, finishBatch } from '../../../src/store/runs/finish-runs.ts'
import type { SubmitItem, SubmitOutcome } from '../../../src/store/submission/submission.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { failed, finished, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine, sql } from '../../../src/testing/store/store.ts'

/** Hazard 9: one item that the engine cannot store, in a batch with 63 good items. The service normally refuses such items. */

const GOOD = 63
type Fate = 'rejected' | 'accepted'

/** SQLite stores any text and any 64-bit integer. Accepting such an item must not harm the rest of the batch either. */
const POISONS: [string, (scene: Scene) => Partial<SubmitItem>, { postgres: Fate; sqlite: Fate }][] = [
  ['NUL in the payload', () => ({ payload: '"a\u0000b"' }), { postgres: 'rejected', sqlite: 'accepted' }],
  ['NUL in a label', () => ({ labels: { a: '\u0000' } }), { postgres: 'rejected', sqlite: 'accepted' }],
  ['half a surrogate pair', () => ({ payload: '"\ud800"' }), { postgres: 'accepted', sqlite: 'accepted' }],
  ['an invalid id', () => ({ jobId: `no id ${v7()}` }), { postgres: 'rejected', sqlite: 'accepted' }],
  ['a priority beyond 32 bits', () => ({ priority: 2 ** 40 }), { postgres: 'rejected', sqlite: 'accepted' }],
  ['a cost beyond 64 bits', () => ({ estimatedCostMicros: 2 ** 63 }), { postgres: 'rejected', sqlite: 'rejected' }],
  [
    'a cost that is no number',
    () => ({ estimatedCostMicros: Number.NaN }),
    { postgres: 'rejected', sqlite: 'rejected' },
  ],
  ['a job id that is taken', () => ({ jobId: TAKEN }), { postgres: 'rejected', sqlite: 'rejected' }],
  [
    'a key too long for its index',
    () => ({ key: { key: randomBytes(9_000).toString('base64'), operation: 'submit', requestHash: 'h', ttlMs: 1 } }),
    { postgres: 'rejected', sqlite: 'accepted' },
  ],
]
const TAKEN = v7()

eachEngine(({ engine, store }) => {
  describe('a batch of 63 good submits and one bad submit', () => {
    test.each(POISONS)('the good submits are stored beside %s', async (_, poison, fates) => {
      const scene = new Scene(store())
      if ((await sql(store(), 'SELECT 1 AS one FROM ichido.jobs WHERE id = $1', TAKEN)).length === 0) {
        await scene.submitAll([scene.item({ jobId: TAKEN })])
      }
      const items = Array.from({ length: GOOD }, (_, i) => scene.item({ key: i % 2 === 0 ? `k${i}` : null }))
      const bad = { ...scene.item(), ...poison(scene) }
      const place = Math.floor(Math.random() * GOOD)
      const batches: number[] = []
      const batcher = new Batcher<SubmitItem, SubmitOutcome>({
        ...SIZES,
        name: 'submit',
        run(batch) {
          batches.push(batch.length)
          return store().write(submitJobs(batch, renderForTest))
        },
        userOf: (item) => item.userId,
      })
      const settled = await Promise.allSettled(items.toSpliced(place, 0, bad).map((item) => batcher.add(item)))

      expect(batches[0], 'they came as one batch').toBe(GOOD + 1)
      const [theBad] = settled.splice(place, 1)
      expect(settled.map((s) => s.status === 'fulfilled' && s.value.kind)).toEqual(Array(GOOD).fill('created'))
      expect(theBad?.status).toBe(fates[engine] === 'rejected' ? 'rejected' : 'fulfilled')
      if (theBad?.status === 'rejected') expect(theBad.reason).toBeInstanceOf(BadValue)
      const stored = await sql(store(), 'SELECT id FROM ichido.jobs WHERE user_id = $1', scene.userId)
      const expected = [...items, ...(theBad?.status === 'fulfilled' ? [bad] : [])].map(({ jobId }) => jobId)
      expect(
        stored
          .map(({ id }) => id)
          .filter((id) => id !== TAKEN)
          .sort(),
      ).toEqual(expected.sort())
    })
  })

  test('63 good reports are stored although one cannot be', async () => {
    const scene = new Scene(store())
    await scene.submitAll(Array.from({ length: GOOD + 1 }, () => scene.item()))
    const leases = await scene.lease({ max: GOOD + 1, startId: 's' })
    const items = leases.map((lease, i) => scene.endItem(lease, i % 2 === 0 ? finished() : failed()))
    const poison = items[20]
    if (poison === undefined) throw new Error('There are 64 leases')
    poison.report = finished({ costMicros: 2 ** 63 })
    const batcher = new Batcher<FinishItem, FinishOutcome>({
      ...SIZES,
      name: 'finish',
      run: (batch) => store().write(finishBatch(batch)),
      userOf: (item) => item.workerId,
    })
    const settled = await Promise.allSettled(items.map((item) => batcher.add(item)))
    const kinds = settled.map((s) => (s.status === 'fulfilled' ? s.value.kind : s.reason.name))
    expect(kinds).toEqual(items.map((item) => (item === poison ? 'BadValue' : 'recorded')))
    expect(await scene.run(poison.jobId)).toMatchObject({ state: 'RUNNING' })
  })
})

const SIZES = { world: realWorld, itemsMax: 1_000, bytesMax: 1e9, inFlightMax: 1, bytesOf: () => 1 }
