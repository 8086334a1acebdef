import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { createRetain } from '../../../src/leader/duties/retain.ts'
import { realWorld } from '../../../src/node/world.ts'
import { silentMeter } from '../../../src/services/system/meter.ts'
import { findJob, findResult } from '../../../src/store/jobs/read-jobs.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { addCounts } from '../../../src/store/system/promise-counters.ts'
import { removeEvents, removeJobs } from '../../../src/store/system/retention.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { begin, lead, makeOneDead, progress, redriver, retry } from '../../../src/testing/store/dead-letters.ts'
import { leftovers, removeKeys, settingsOf } from '../../../src/testing/store/retention.ts'
import { finished, KEY_TTL_MS, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** If another command touches a job while retention removes it, job and key exist completely or are gone completely. */

const AGES = { jobMs: 1_000, letterMs: 1_000 }
const KEY = { key: 'key' }

const nodes = twoNodes()

async function canceled(scene: Scene, changes: Parameters<Scene['submitted']>[0] = {}): Promise<string> {
  const jobId = await scene.submitted({ labels: { a: 'b' }, ...changes })
  await scene.cancel(jobId)
  await scene.age(2 * KEY_TTL_MS)
  return jobId
}
const exists = async (jobId: string) =>
  (await sql(nodes.a(), 'SELECT id FROM ichido.jobs WHERE id = $1', jobId)).length > 0
const keysOf = (scene: Scene) =>
  sql(nodes.a(), 'SELECT job_id FROM ichido.idempotency_keys WHERE user_id = $1', scene.userId)

describe('retention removes a job while another command uses it', () => {
  test('a removed job cannot be retried, and a retry that commits first keeps the job', async () => {
    for (const first of ['remove', 'retry'] as const) {
      const scene = new Scene(nodes.a())
      const jobId = await canceled(scene)
      const remove = removeJobs(await seize(nodes.a()), [jobId], AGES)
      if (first === 'remove') {
        const [, retried] = await nodes.meet(remove, retry(jobId))
        expect(retried).toMatchObject({ kind: 'refused', reason: 'NOT_FOUND' })
      } else {
        const [retried, removed] = await nodes.meet(retry(jobId), remove)
        expect(retried).toMatchObject({ kind: 'retried' })
        expect(removed.rows.get('jobs') ?? 0).toBe(0)
      }
      expect(await exists(jobId)).toBe(first === 'retry')
    }
    expect(await leftovers(nodes.a())).toEqual({})
  })

  test('removing a job also removes the key that a retry would restore', async () => {
    for (const first of ['remove', 'retry'] as const) {
      const scene = new Scene(nodes.a())
      const jobId = await canceled(scene, { key: KEY })
      await nodes.a().write(removeKeys(1_000))
      expect(await keysOf(scene)).toEqual([])
      const remove = removeJobs(await seize(nodes.a()), [jobId], AGES)
      if (first === 'remove') await nodes.meet(remove, retry(jobId))
      else await nodes.meet(retry(jobId), remove)
      expect(await keysOf(scene)).toEqual(first === 'retry' ? [{ job_id: jobId }] : [])
      expect(await exists(jobId)).toBe(first === 'retry')
      const again = await scene.submitted({ key: KEY })
      expect(again === jobId).toBe(first === 'retry')
    }
    expect(await leftovers(nodes.a())).toEqual({})
  })

  test('a removed job cannot be replaced, and a replacement that commits first keeps it', async () => {
    for (const first of ['remove', 'replace'] as const) {
      const scene = new Scene(nodes.a())
      const jobId = await canceled(scene)
      const remove = removeJobs(await seize(nodes.a()), [jobId], AGES)
      const replace = submitJobs([scene.item({ replacesJobId: jobId })], renderForTest)
      if (first === 'remove') {
        const [, [outcome]] = await nodes.meet(remove, replace)
        expect(outcome).toMatchObject({ kind: 'refused', refusal: { code: 'NOT_FOUND' } })
      } else {
        const [[outcome]] = await nodes.meet(replace, remove)
        expect(outcome).toMatchObject({ kind: 'created' })
      }
      expect(await exists(jobId)).toBe(first === 'replace')
    }
  })

  test('a redrive skips a removed job, and a redrive that began first keeps the job', async () => {
    for (const first of ['remove', 'redrive'] as const) {
      const scene = new Scene(nodes.a())
      const jobId = await makeOneDead(scene)
      await sql(nodes.a(), 'UPDATE ichido.dead_letters SET dead_at = 1 WHERE job_id = $1', jobId)
      const term = await lead(nodes.a())
      const remove = removeJobs(term, [jobId], AGES)
      const redrive = begin(scene, { jobIds: [jobId] })
      const begun = first === 'remove' ? (await nodes.meet(remove, redrive))[1] : (await nodes.meet(redrive, remove))[0]
      expect(begun.matched).toBe(first === 'remove' ? 0 : 1)
      expect(await exists(jobId)).toBe(first === 'redrive')
      const tick = redriver(nodes.a(), term)
      for (let i = 0; i < 3; i++) await tick()
      expect(await progress(nodes.a(), begun)).toMatchObject({ state: 'done', done: first === 'remove' ? 0 : 1 })
    }
    expect(await leftovers(nodes.a())).toEqual({})
  })

  test('a key names its job until it expires, even if a short result TTL removed the job', async () => {
    const scene = new Scene(nodes.a())
    const lease = await scene.running({ key: { key: 'key', ttlMs: 3_600_000 } })
    await nodes.a().write(finishBatch([scene.endItem(lease, finished())]))
    await scene.age(60_000)
    const term = await seize(nodes.a())
    const submit = submitJobs([scene.item({ key: KEY })], renderForTest)
    const [kept, [replayed]] = await nodes.meet(removeJobs(term, [lease.jobId], AGES), submit)
    expect(kept.rows.get('jobs')).toBe(0)
    expect(replayed).toMatchObject({ kind: 'replayed', jobId: lease.jobId })

    await sql(nodes.a(), 'INSERT INTO ichido.queues (name, result_ttl_seconds) VALUES ($1, 1)', scene.queue)
    const [removed, [again]] = await nodes.meet(removeJobs(term, [lease.jobId], AGES), submit)
    expect(removed.rows.get('jobs')).toBe(1)
    expect(again).toMatchObject({ kind: 'replayed', jobId: lease.jobId })
    expect((await nodes.a().write(submit))[0]).toMatchObject({ kind: 'replayed', jobId: lease.jobId })
  })

  test('removal leaves no counts behind and does not wait for a counter', async () => {
    const scene = new Scene(nodes.a())
    const term = await seize(nodes.a())
    for (const first of ['remove', 'count'] as const) {
      const jobId = await canceled(scene)
      const counts = new Map([[jobId, { duplicatesRefused: 1, replaysServed: 0, staleWritesFenced: 0 }]])
      const count = addCounts({ nodeId: v7(), batchN: 1, counts })
      const remove = removeJobs(term, [jobId], AGES)
      await (first === 'remove' ? nodes.meet(remove, count) : nodes.meet(count, remove))
      expect(await exists(jobId)).toBe(first === 'count')
    }
    expect(await leftovers(nodes.a())).toEqual({})
  })

  test('events of a job that is being retried are not removed', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await canceled(scene)
    const [, removed] = await nodes.meet(retry(jobId), removeEvents(await seize(nodes.a()), [jobId], 1_000))
    expect(removed).toEqual({ removed: 0, unfinished: false })
    expect(await scene.events(jobId)).toHaveLength(3)
  })
})

test('submit, lease, heartbeat and finish do not wait for a removal', async () => {
  const scene = new Scene(nodes.b())
  const [old, held] = [await canceled(scene), await scene.running()]
  const gate = await nodes.gate()
  const removing = nodes.a().write(gate.hold(removeJobs(await seize(nodes.a()), [old], AGES)))
  await gate.reached()
  await scene.submitted({ key: 'key' })
  expect(await scene.heartbeat(await scene.leased({ startId: 's' }))).toMatchObject({ kind: 'extended' })
  expect(await scene.finish(held)).toMatchObject({ kind: 'recorded' })
  await gate.open()
  expect((await removing).rows.get('jobs')).toBe(1)
})

test('under load on two nodes, every job exists completely or is gone', async () => {
  const term = await lead(nodes.a())
  const settings = settingsOf({ job_retention_seconds: 1, dead_letter_retention_seconds: 1, retain_batch_max: 20 })
  const scenes = Array.from({ length: 4 }, () => new Scene(nodes.a()))
  const jobIds: string[] = []
  const perScene = size(15, 250)
  for (const scene of scenes) {
    for (let i = 0; i < perScene; i++) jobIds.push(await scene.submitted({ key: i % 3 === 0 ? `key-${i}` : null }))
    const leases = await scene.lease({ max: perScene, startId: 's' })
    await nodes
      .a()
      .write(
        finishBatch(
          leases.map((lease, i) =>
            scene.endItem(
              lease,
              i % 2 ? finished() : { verb: 'fail', error: { code: 'BROKEN', message: '' }, retryable: false },
            ),
          ),
        ),
      )
    await scene.age(2 * KEY_TTL_MS)
  }
  await sql(nodes.a(), 'UPDATE ichido.dead_letters SET dead_at = 1')
  const some = (n: number) => Array.from({ length: n }, () => jobIds[Math.floor(Math.random() * jobIds.length)] ?? '')
  let working = true
  const during = async (step: () => Promise<unknown>) => {
    while (working) await step()
  }
  const nodeId = v7()
  let batchN = 0
  const reads: string[] = []
  const busy = [
    during(async () => {
      for (const jobId of some(3)) await nodes.b().write(retry(jobId))
    }),
    during(async () => {
      const counts = new Map(
        some(10).map((id) => [id, { duplicatesRefused: 1, replaysServed: 1, staleWritesFenced: 1 }]),
      )
      await nodes.b().write(addCounts({ nodeId, batchN: ++batchN, counts }))
    }),
    during(async () => {
      const [id = ''] = some(1)
      const [job, result] = [await nodes.b().read(findJob(id)), await nodes.b().read(findResult(id))]
      if (job !== null) expect(job.runs.length).toBeGreaterThan(0)
      if (result !== undefined && result.state === 'SUCCEEDED') expect(result.run_id).not.toBeNull()
      reads.push(id)
    }),
    during(async () => {
      const scene = scenes[Math.floor(Math.random() * scenes.length)]
      await scene?.submitAll([scene.item({ key: `key-${3 * Math.floor(Math.random() * 9)}` })])
    }),
    during(async () => {
      const scene = scenes[Math.floor(Math.random() * scenes.length)] ?? scenes[0]
      if (scene === undefined) return
      await nodes.b().write(begin(scene))
      await redriver(nodes.a(), term)()
    }),
  ]
  const deps = { world: realWorld, settings, meter: silentMeter }
  const [one, other] = [nodes.a(), nodes.b()].map((store) => createRetain({ ...deps, store }, term))
  const retaining = async () => {
    for (let i = 0; i < size(8, 150); i++) await Promise.all([one?.(), other?.()])
  }
  await Promise.race([retaining(), Promise.all(busy)]).finally(() => {
    working = false
  })
  await Promise.all(busy)
  expect(reads.length).toBeGreaterThan(0)
  expect(await leftovers(nodes.a())).toEqual({})
  const headless = `SELECT id FROM ichido.jobs j
    WHERE NOT EXISTS (SELECT 1 FROM ichido.runs r WHERE r.job_id = j.id AND r.latest)`
  expect(await sql(nodes.a(), headless)).toEqual([])
  const removed =
    jobIds.length -
    (await sql(nodes.a(), 'SELECT id FROM ichido.jobs WHERE id = ANY($1::uuid[])', `{${jobIds.join()}}`)).length
  expect(removed).toBeGreaterThan(0)
})
