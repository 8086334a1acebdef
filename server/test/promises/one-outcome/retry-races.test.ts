import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { toMicros } from '../../../src/core/limits/quota.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { findQuota, setQuota } from '../../../src/store/limits/quotas.ts'
import { abortOperation, type Operation } from '../../../src/store/operations/operations.ts'
import { stepOperation } from '../../../src/store/operations/step.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import {
  begin,
  lead,
  letters,
  makeDead,
  makeOneDead,
  progress,
  redriver,
  retry,
  timesRetried,
} from '../../../src/testing/store/dead-letters.ts'
import { renderForTest, Scene } from '../../../src/testing/store/scene.ts'

/** Two nodes on PostgreSQL retry and redrive the same jobs, keys and limits. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

async function limit(scene: Scene, maxConcurrent: number | null): Promise<void> {
  await nodes.a().write(setQuota(scene.userId, { maxConcurrent, costLimitMicros: null, period: 'day' }))
}

/** A redrive whose dead letters are marked, and the leader's term. */
async function marked(scene: Scene) {
  const term = await lead(nodes.a())
  let redrive = await nodes.a().write(begin(scene))
  while (!redrive.prepared) {
    await nodes.a().write(stepOf(redrive))
    redrive = await progress(nodes.a(), redrive)
  }
  function stepOf({ operationId, version }: Operation) {
    const nextRunIds = Array.from({ length: 100 }, () => v7())
    return stepOperation(term, { operationId, version, nextRunIds, auditId: v7(), leased: [] })
  }
  return { redrive, stepOf }
}

/** Users without limits are not locked against each other. For them the row of the run decides. */
describe.each([null, 9])('a dead letter of a user with limit %s', (maxConcurrent) => {
  async function dead() {
    const scene = newScene()
    await limit(scene, maxConcurrent)
    return { scene, jobId: await makeOneDead(scene) }
  }

  test('the second of two retries is refused, and there is one next run', async () => {
    const { scene, jobId } = await dead()
    expect(await nodes.meet(retry(jobId), retry(jobId))).toMatchObject([
      { kind: 'retried' },
      { kind: 'refused', reason: 'NOT_ENDED', state: 'PENDING' },
    ])
    expect(await scene.runs(jobId)).toHaveLength(2)
  })

  test('a redrive skips a retried job', async () => {
    const { scene, jobId } = await dead()
    const { redrive, stepOf } = await marked(scene)
    expect(await nodes.meet(retry(jobId), stepOf(redrive))).toMatchObject([{ kind: 'retried' }, { retried: [] }])
    expect(await scene.runs(jobId)).toHaveLength(2)
  })

  test('a retry after a redrive is refused', async () => {
    const { scene, jobId } = await dead()
    const { redrive, stepOf } = await marked(scene)
    expect(await nodes.meet(stepOf(redrive), retry(jobId))).toMatchObject([
      { retried: [{ jobId }] },
      { kind: 'refused', reason: 'NOT_ENDED' },
    ])
    expect(await scene.runs(jobId)).toHaveLength(2)
  })
})

test('of a retry and a submit for the last slot of a quota, only the first succeeds', async () => {
  const scene = newScene()
  const [first = '', second = ''] = await makeDead(scene, 2)
  await limit(scene, 1)
  const submit = submitJobs([scene.item()], renderForTest)
  expect(await nodes.meet(retry(first), submit)).toMatchObject([{ kind: 'retried' }, [{ kind: 'refused' }]])
  await scene.cancel(first)
  expect(await nodes.meet(submitJobs([scene.item()], renderForTest), retry(second))).toMatchObject([
    [{ kind: 'created' }],
    { kind: 'refused', reason: 'QUOTA_EXCEEDED' },
  ])
})

describe('two jobs of cost 10, canceled yesterday, of a user with a limit of 10 a day', () => {
  const cost = toMicros(10)

  async function canceled(count: number) {
    const scene = newScene()
    await nodes.a().write(setQuota(scene.userId, { maxConcurrent: null, costLimitMicros: cost, period: 'day' }))
    const ids: string[] = []
    while (ids.length < count) {
      const jobId = await scene.submitted({ estimatedCostMicros: cost })
      await scene.cancel(jobId)
      ids.push(jobId)
    }
    await scene.age(24 * 3_600_000)
    const spent = async () => (await nodes.a().read(findQuota(scene.userId))).spentMicros
    return { scene, ids, spent }
  }

  test('only one of two concurrent retries is within the cost limit', async () => {
    const { ids, spent } = await canceled(2)
    const [first = '', second = ''] = ids
    expect(await nodes.meet(retry(first), retry(second))).toMatchObject([
      { kind: 'retried' },
      { kind: 'refused', reason: 'COST_LIMIT_EXCEEDED' },
    ])
    expect(await spent()).toBe(cost)
  })

  test("a cancel returns today's charge of the retry today", async () => {
    const { scene, ids, spent } = await canceled(1)
    const [jobId = ''] = ids
    expect(await nodes.meet(retry(jobId), cancelJob(jobId))).toMatchObject([{ kind: 'retried' }, { kind: 'canceled' }])
    expect(await spent()).toBe(0)
    expect(
      await nodes.meet(retry(jobId), submitJobs([scene.item({ estimatedCostMicros: 1 })], renderForTest)),
    ).toMatchObject([{ kind: 'retried' }, [{ kind: 'refused', refusal: { code: 'COST_LIMIT_EXCEEDED' } }]])
    expect(await spent()).toBe(cost)
  })
})

test('after a concurrent retry and cancel the job has one latest run', async () => {
  const scene = newScene()
  const [first = '', second = ''] = await makeDead(scene, 2)
  expect(await nodes.meet(retry(first), cancelJob(first))).toMatchObject([
    { kind: 'retried' },
    { kind: expect.any(String) },
  ])
  expect((await scene.runs(first)).filter((run) => run.latest)).toHaveLength(1)
  expect(await nodes.meet(cancelJob(second), retry(second))).toMatchObject([
    { kind: 'refused', reason: 'ALREADY_ENDED' },
    { kind: 'retried' },
  ])
})

test('if two leaders step one redrive, the step is done once', async () => {
  const scene = newScene()
  await makeDead(scene, 5)
  const { redrive, stepOf } = await marked(scene)
  const [one, other] = await nodes.meet(stepOf(redrive), stepOf(redrive))
  expect([one.retried.length, other.retried.length]).toEqual([5, 0])
  expect(await progress(nodes.a(), redrive)).toMatchObject({ done: 5, version: redrive.version + 1 })
})

test('an abort waits for the running step, and no step follows the abort', async () => {
  const scene = newScene()
  await makeDead(scene, 5)
  const { redrive, stepOf } = await marked(scene)
  const [step, aborted] = await nodes.meet(stepOf(redrive), abortOperation(redrive.operationId, 'tester', v7()))
  expect(step.retried).toHaveLength(5)
  expect(aborted).toMatchObject({ state: 'aborted', done: 5 })
  const next = newScene()
  await makeDead(next, 5)
  const other = await marked(next)
  const [stopped, late] = await nodes.meet(
    abortOperation(other.redrive.operationId, 'tester', v7()),
    other.stepOf(other.redrive),
  )
  expect([stopped?.state, late.retried]).toEqual(['aborted', []])
  expect(await letters(next)).toHaveLength(5)
})

test('two concurrent redrives retry each dead letter once', async () => {
  const scene = newScene()
  await makeDead(scene, 20)
  const term = await lead(nodes.a())
  const begun = [await nodes.a().write(begin(scene)), await nodes.b().write(begin(scene))]
  const ticks = [redriver(nodes.a(), term), redriver(nodes.b(), term)]
  for (let state = 'running'; state === 'running'; ) {
    await Promise.all(ticks.map((tick) => tick()))
    const now = await Promise.all(begun.map((redrive) => progress(nodes.a(), redrive)))
    state = now.some((redrive) => redrive.state === 'running') ? 'running' : 'done'
  }
  const now = await Promise.all(begun.map((redrive) => progress(nodes.a(), redrive)))
  expect(now.reduce((sum, { done }) => sum + done, 0)).toBe(20)
  expect(new Set((await timesRetried(scene)).values())).toEqual(new Set([1]))
})

test('the step of a node that dies is rolled back, and another node does it', async () => {
  const scene = newScene()
  await makeDead(scene, 5)
  const { redrive, stepOf } = await marked(scene)
  const gate = await nodes.gate()
  const step = gate.hold(stepOf(redrive))
  const killed = nodes.a().write({
    name: step.name,
    *work(again) {
      yield* step.work(again)
      throw new Error('killed')
    },
  })
  const died = expect(killed).rejects.toThrow('killed')
  await gate.reached()
  const other = nodes.b().write(stepOf(redrive))
  await gate.someoneWaits()
  await gate.open()
  await died
  expect((await other).retried).toHaveLength(5)
})
