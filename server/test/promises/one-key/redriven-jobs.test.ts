import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { setQuota } from '../../../src/store/limits/quotas.ts'
import { stepOperation } from '../../../src/store/operations/step.ts'
import { findKeys } from '../../../src/store/submission/keys.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { begin, lead, letters, makeOneDead, progress, retry } from '../../../src/testing/store/dead-letters.ts'
import { removeKeys } from '../../../src/testing/store/retention.ts'
import { KEY_TTL_MS, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Hazard 12: the key of a dead letter creates another job, then the dead letter is done: two live jobs for one key. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

/** Users without limits are not locked against each other. For them the row of the key decides. */
describe.each([null, 9])('a dead letter with an expired key, of a user with limit %s', (maxConcurrent) => {
  async function dead() {
    const scene = newScene()
    await nodes.a().write(setQuota(scene.userId, { maxConcurrent, costLimitMicros: null, period: 'day' }))
    return { scene, jobId: await makeOneDead(scene, { key: 'k' }) }
  }

  test('a dead letter is not redriven until the newer job and its key are gone', async () => {
    const { scene, jobId } = await dead()
    await scene.age(KEY_TTL_MS + 1)
    await nodes.b().write(removeKeys(1_000))
    const other = await scene.submitted({ key: 'k' })
    expect(await nodes.b().write(retry(jobId))).toMatchObject({ reason: 'KEY_TAKEN', byJobId: other })
    expect(await redriven(scene)).toEqual([])
    await scene.finish(await scene.leased({ startId: 's' }))
    await scene.age(KEY_TTL_MS + 1)
    expect(await redriven(scene)).toMatchObject([{ jobId }])
    expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId })
  })

  test('a retry and a submit with the expired key create only one live job', async () => {
    const { scene, jobId } = await dead()
    await scene.age(KEY_TTL_MS + 1)
    const item = scene.item({ key: 'k' })
    expect(await nodes.meet(retry(jobId), submitJobs([item], renderForTest))).toMatchObject([
      { kind: 'retried' },
      [{ kind: 'replayed', jobId }],
    ])
    const other = await dead()
    await other.scene.age(KEY_TTL_MS + 1)
    const second = other.scene.item({ key: 'k' })
    expect(await nodes.meet(submitJobs([second], renderForTest), retry(other.jobId))).toMatchObject([
      [{ kind: 'created' }],
      { kind: 'refused', reason: 'KEY_TAKEN', byJobId: second.jobId },
    ])
  })

  test('a retry gets its key back while retention removes the key, in either order', async () => {
    for (const removalFirst of [true, false]) {
      const { scene, jobId } = await dead()
      await scene.age(KEY_TTL_MS + 1)
      const remove = removeKeys(1_000)
      if (removalFirst) await nodes.meet(remove, retry(jobId))
      else await nodes.meet(retry(jobId), remove)
      expect(await nodes.a().read(findKeys('k', scene.userId))).toMatchObject([{ jobId, active: true }])
    }
  })

  test('a retry is refused while a submit takes the removed key', async () => {
    const { scene, jobId } = await dead()
    await scene.age(KEY_TTL_MS + 1)
    await nodes.a().write(removeKeys(1_000))
    const item = scene.item({ key: 'k' })
    expect(await nodes.meet(submitJobs([item], renderForTest), retry(jobId))).toMatchObject([
      [{ kind: 'created' }],
      { kind: 'refused', reason: 'KEY_TAKEN', byJobId: item.jobId },
    ])
    expect(await letters(scene)).toHaveLength(1)
  })
})

/** Runs one step of a redrive of the user's dead letters, and returns the retried jobs. */
async function redriven(scene: Scene) {
  const { redrive, stepOf } = await marked(scene)
  return (await nodes.a().write(stepOf(redrive))).retried
}

async function marked(scene: Scene) {
  const term = await lead(nodes.a())
  let redrive = await nodes.a().write(begin(scene))
  const stepOf = ({ operationId, version }: typeof redrive) =>
    stepOperation(term, { operationId, version, nextRunIds: [v7(), v7()], auditId: v7(), leased: [] })
  while (!redrive.prepared) {
    await nodes.a().write(stepOf(redrive))
    redrive = await progress(nodes.a(), redrive)
  }
  return { redrive, stepOf }
}

test('random interleaving: one live job per key, and one run at a time', async () => {
  for (let round = 0; round < size(15, 300); round++) {
    const scene = newScene()
    const jobId = await makeOneDead(scene, { key: 'k' })
    await scene.age(KEY_TTL_MS + 1)
    const { redrive, stepOf } = await marked(scene)
    const commands = [
      retry(jobId),
      retry(jobId),
      stepOf(redrive),
      submitJobs([scene.item({ key: 'k' })], renderForTest),
      removeKeys(1_000),
    ].sort(() => Math.random() - 0.5)
    await Promise.all(commands.map((one, i) => (i % 2 === 0 ? nodes.a() : nodes.b()).write<unknown>(one)))
    const live = `SELECT id FROM ichido.runs WHERE user_id = $1 AND latest AND state IN ('PENDING', 'ASSIGNED', 'RUNNING')`
    expect(await sql(nodes.a(), live, scene.userId)).toHaveLength(1)
    const runs = await scene.runs(jobId)
    expect(runs.filter((run) => run.latest)).toHaveLength(1)
    expect(await scene.events(jobId)).toHaveLength(Number(runs.at(-1)?.last_event_n))
  }
})
