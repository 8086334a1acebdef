import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { type DeleteOutcome, deleteJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import type { Command } from '../../../src/store/port.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { removeJobs } from '../../../src/store/system/retention.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { begin, lead, makeOneDead, progress, redriver, retry } from '../../../src/testing/store/dead-letters.ts'
import { leftovers } from '../../../src/testing/store/retention.ts'
import { renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** If a job is deleted while another command changes it, the job exists completely or is gone completely. */

const nodes = twoNodes()
const ORDERS = ['delete', 'other'] as const

const remove = (jobId: string): Command<DeleteOutcome> => deleteJob(jobId, { id: v7(), actor: 'tester' })
const exists = async (jobId: string) =>
  (await sql(nodes.a(), 'SELECT id FROM ichido.jobs WHERE id = $1', jobId)).length > 0

async function canceled(scene: Scene): Promise<string> {
  const jobId = await scene.submitted({ labels: { a: 'b' }, key: { key: 'key' } })
  await scene.cancel(jobId)
  return jobId
}

/** Runs both commands at the same time, with `first` ahead. Returns the outcome of the deletion, then that of the other. */
async function meet<T>(first: (typeof ORDERS)[number], jobId: string, other: Command<T>): Promise<[DeleteOutcome, T]> {
  if (first === 'delete') return nodes.meet(remove(jobId), other)
  const [others, deleted] = await nodes.meet(other, remove(jobId))
  return [deleted, others]
}

describe.each(ORDERS)('if the %s comes first,', (first) => {
  const deletes = first === 'delete'

  test('a job is either deleted or retried, not both', async () => {
    const scene = new Scene(nodes.a())
    for (const jobId of [await canceled(scene), await makeOneDead(scene)]) {
      const [deleted, retried] = await meet(first, jobId, retry(jobId))
      if (deletes) {
        expect(deleted).toEqual({ kind: 'deleted' })
        expect(retried).toMatchObject({ kind: 'refused', reason: 'NOT_FOUND' })
      } else {
        expect(deleted).toEqual({ kind: 'refused', refusal: { reason: 'NOT_ENDED', state: 'PENDING' } })
        expect(retried).toMatchObject({ kind: 'retried' })
        expect(await scene.runs(jobId)).toHaveLength(2)
        // The events were read without a gap, so all of them still exist.
        expect((await scene.events(jobId)).length).toBeGreaterThanOrEqual(3)
      }
      expect(await exists(jobId)).toBe(!deletes)
    }
    expect(await leftovers(nodes.a())).toEqual({})
  })

  test('a job is deleted or replaced, and a replaced job can still be deleted', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await canceled(scene)
    const replace = submitJobs([scene.item({ replacesJobId: jobId })], renderForTest)
    const [deleted, [replaced]] = await meet(first, jobId, replace)
    expect(deleted).toEqual({ kind: 'deleted' })
    if (deletes) expect(replaced).toMatchObject({ kind: 'refused', refusal: { code: 'NOT_FOUND' } })
    else expect(replaced).toMatchObject({ kind: 'created' })
    expect(await exists(jobId)).toBe(false)
  })

  test('a dead letter is either deleted or redriven', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await makeOneDead(scene)
    const term = await lead(nodes.a())
    const [deleted, begun] = await meet(first, jobId, begin(scene, { jobIds: [jobId] }))
    expect(begun.matched).toBe(deletes ? 0 : 1)
    if (deletes) expect(deleted).toEqual({ kind: 'deleted' })
    else {
      expect(deleted).toEqual({ kind: 'refused', refusal: { reason: 'IN_REDRIVE' } })
      expect(await nodes.b().write(remove(jobId))).toEqual(deleted)
    }
    const tick = redriver(nodes.a(), term)
    for (let i = 0; i < 3; i++) await tick()
    expect(await progress(nodes.a(), begun)).toMatchObject({ state: 'done', done: deletes ? 0 : 1 })
    expect(await exists(jobId)).toBe(!deletes)
    expect(await leftovers(nodes.a())).toEqual({})
  })

  test("retention and a user's delete remove a job once", async () => {
    const scene = new Scene(nodes.a())
    const jobId = await makeOneDead(scene)
    await sql(nodes.a(), 'UPDATE ichido.dead_letters SET dead_at = 1 WHERE job_id = $1', jobId)
    const retention = removeJobs(await lead(nodes.a()), [jobId], { jobMs: 1, letterMs: 1 })
    const [deleted, removed] = await meet(first, jobId, retention)
    const outcome = deletes ? { kind: 'deleted' } : { kind: 'refused', refusal: { reason: 'NOT_FOUND' } }
    expect(deleted).toEqual(outcome)
    expect(removed.rows.get('jobs') ?? 0).toBe(deletes ? 0 : 1)
    expect(await leftovers(nodes.a())).toEqual({})
  })
})

test('only one of two concurrent deletes succeeds', async () => {
  const jobId = await canceled(new Scene(nodes.a()))
  const outcomes = await nodes.meet(remove(jobId), remove(jobId))
  expect(outcomes).toEqual([{ kind: 'deleted' }, { kind: 'refused', refusal: { reason: 'NOT_FOUND' } }])
})

test('a deletion with a lost COMMIT answer is not reported as a failure', async () => {
  const jobId = await canceled(new Scene(nodes.a()))
  const command = remove(jobId)
  expect(await nodes.a().write(command)).toEqual({ kind: 'deleted' })
  expect(await nodes.a().write({ name: 'again', work: () => command.work(true) })).toEqual({ kind: 'deleted' })
})
