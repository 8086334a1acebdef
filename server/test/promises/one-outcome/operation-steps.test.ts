import { v7 } from 'uuid'
import { expect, test } from 'vitest'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { EVERY_JOB } from '../../../src/store/jobs/list-jobs.ts'
import { abortOperation, beginOperation, type Operation } from '../../../src/store/operations/operations.ts'
import { stepOperation } from '../../../src/store/operations/step.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import {
  failAll,
  lead,
  makeDead,
  makeOneDead,
  progress,
  redriver,
  retry,
  timesRetried,
} from '../../../src/testing/store/dead-letters.ts'
import { Scene } from '../../../src/testing/store/scene.ts'

/** Two nodes on PostgreSQL cancel and retry the same jobs, in bulk and one by one. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

async function begun(scene: Scene, action: 'cancel' | 'retry') {
  const term = await lead(nodes.a())
  const states = action === 'cancel' ? ['PENDING', 'ORPHANED', 'ASSIGNED', 'RUNNING'] : ['FAILED', 'CANCELED']
  const filter = { ...EVERY_JOB, userId: scene.userId, states }
  const ids = { operationId: v7(), auditId: v7(), actor: 'tester', perSecond: null, jobIds: null }
  const operation = await nodes.a().write(beginOperation({ action, filter, ...ids }))
  const stepOf = ({ operationId, version }: Operation) => {
    const nextRunIds = Array.from({ length: 100 }, () => v7())
    return stepOperation(term, { operationId, version, nextRunIds, auditId: v7(), leased: [] })
  }
  return { term, operation, stepOf }
}

async function submitted(scene: Scene, count: number): Promise<string[]> {
  const ids: string[] = []
  for (let i = 0; i < count; i++) ids.push(await scene.submitted())
  return ids
}

test('if two leaders step one cancel, the step is done once', async () => {
  const scene = newScene()
  await submitted(scene, 5)
  await scene.lease({ max: 2, startId: 's' })
  const { operation, stepOf } = await begun(scene, 'cancel')
  const [one, other] = await nodes.meet(stepOf(operation), stepOf(operation))
  expect([one.canceled.length, one.requested.length]).toEqual([3, 2])
  expect([other.canceled, other.requested]).toEqual([[], []])
  expect(await progress(nodes.a(), operation)).toMatchObject({ done: 5, version: operation.version + 1 })
})

test('two leaders that both run to the end retry each job once, although it fails again', async () => {
  const scene = newScene()
  const dead = await makeDead(scene, 20)
  const { term, operation } = await begun(scene, 'retry')
  const ticks = [redriver(nodes.a(), term), redriver(nodes.b(), term)]
  while ((await progress(nodes.a(), operation)).state === 'running') {
    await Promise.all(ticks.map((tick) => tick()))
    await failAll(scene)
  }
  expect(await progress(nodes.a(), operation)).toMatchObject({ matched: 20, done: 20, skipped: 0 })
  const times = await timesRetried(scene)
  expect([times.size, ...new Set(times.values())]).toEqual([dead.length, 1])
})

test('a job that is canceled alone meanwhile is skipped, and ends once', async () => {
  const scene = newScene()
  const [first = '', second = ''] = await submitted(scene, 3)
  const { operation, stepOf } = await begun(scene, 'cancel')
  const [single, step] = await nodes.meet(cancelJob(second), stepOf(operation))
  expect(single).toEqual({ kind: 'canceled', queue: scene.queue, jobKind: 'work' })
  expect(step.canceled).toHaveLength(2)
  expect(await progress(nodes.a(), operation)).toMatchObject({ done: 2, skipped: 1 })
  expect(await scene.runs(second)).toHaveLength(1)
  expect((await scene.events(second)).filter((event) => JSON.stringify(event).includes('CANCELED'))).toHaveLength(1)

  const other = newScene()
  const [only = ''] = await submitted(other, 1)
  const next = await begun(other, 'cancel')
  expect(await nodes.meet(next.stepOf(next.operation), cancelJob(only))).toMatchObject([
    { canceled: [{ jobId: only, queue: other.queue }] },
    { kind: 'repeated' },
  ])
  expect(await scene.state(first)).toBe('CANCELED')
})

test('a job that is retried alone meanwhile is skipped, and has one next run', async () => {
  const scene = newScene()
  const jobId = await makeOneDead(scene)
  const { operation, stepOf } = await begun(scene, 'retry')
  expect(await nodes.meet(retry(jobId), stepOf(operation))).toMatchObject([{ kind: 'retried' }, { retried: [] }])
  expect(await progress(nodes.a(), operation)).toMatchObject({ done: 0, skipped: 1 })
  expect([...(await timesRetried(scene)).values()]).toEqual([1])
})

test('an abort waits for the running step, and no step follows it', async () => {
  const scene = newScene()
  await submitted(scene, 3)
  const { operation, stepOf } = await begun(scene, 'cancel')
  const [late, step] = await nodes.meet(abortOperation(operation.operationId, 'tester', v7()), stepOf(operation))
  expect([late?.state, step.canceled]).toEqual(['aborted', []])
})

test('the step of a node that dies is rolled back, and another node does it', async () => {
  const scene = newScene()
  await submitted(scene, 5)
  const { operation, stepOf } = await begun(scene, 'cancel')
  const gate = await nodes.gate()
  const step = gate.hold(stepOf(operation))
  const killed = nodes.a().write({
    name: step.name,
    *work(again) {
      yield* step.work(again)
      throw new Error('killed')
    },
  })
  const died = expect(killed).rejects.toThrow('killed')
  await gate.reached()
  const other = nodes.b().write(stepOf(operation))
  await gate.someoneWaits()
  await gate.open()
  await died
  expect((await other).canceled).toHaveLength(5)
})
