import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { setQuota } from '../../../src/store/limits/quotas.ts'
import { stepOperation } from '../../../src/store/operations/step.ts'
import type { Store } from '../../../src/store/port.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { renewTerm } from '../../../src/store/system/leadership.ts'
import type { Term } from '../../../src/store/system/term.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { ENGINES, testServices } from '../../../src/testing/services/services.ts'
import { begin, failAll, lead, letters, makeOneDead, progress, retry } from '../../../src/testing/store/dead-letters.ts'
import { renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine, sql } from '../../../src/testing/store/store.ts'

/** Exactly one of several concurrent retries, redrives and replacements of a job succeeds. */

const nodes = twoNodes()

const replaceItem = (scene: Scene, jobId: string, key: string | null = null) =>
  scene.item({ replacesJobId: jobId, key: key === null ? null : { key, operation: 'retry' } })
const replace = (scene: Scene, jobId: string, key: string | null = null) =>
  submitJobs([replaceItem(scene, jobId, key)], renderForTest)

/** The leader's step that redrives the dead letters of a scene, after all of them are marked. */
async function redriving(scene: Scene, store: Store, led?: Term) {
  const term = led ?? (await lead(store))
  let redrive = await store.write(begin(scene))
  const step = () =>
    stepOperation(term, {
      ...redrive,
      nextRunIds: Array.from({ length: 10 }, () => v7()),
      auditId: v7(),
      leased: [],
    })
  while (!redrive.prepared) {
    await store.write(step())
    redrive = await progress(store, redrive)
  }
  return step()
}

/** How often a job was retried or redriven, and how often it was replaced. */
async function counted(scene: Scene, jobId: string): Promise<[number, number]> {
  const replaced = await sql(scene.store, 'SELECT id FROM ichido.jobs WHERE replaces_job_id = $1', jobId)
  return [(await scene.runs(jobId)).length - 1, replaced.length]
}

/** Users without limits are not locked against each other. For them the row of the run decides. */
describe.each([null, 9])('a dead letter of a user with limit %s', (maxConcurrent) => {
  async function dead() {
    const scene = new Scene(nodes.a())
    await nodes.a().write(setQuota(scene.userId, { maxConcurrent, costLimitMicros: null, period: 'day' }))
    return { scene, jobId: await makeOneDead(scene) }
  }
  const NOT_ENDED = { kind: 'refused', refusal: { code: 'NOT_ENDED', replaces: { state: 'PENDING' } } }
  const ALREADY_REPLACED = { kind: 'refused', refusal: { code: 'ALREADY_REPLACED' } }

  test('a replacement after a retry is refused', async () => {
    const { scene, jobId } = await dead()
    expect(await nodes.meet(retry(jobId), replace(scene, jobId))).toMatchObject([{ kind: 'retried' }, [NOT_ENDED]])
    expect(await counted(scene, jobId)).toEqual([1, 0])
  })

  test('a retry after a replacement is refused', async () => {
    const { scene, jobId } = await dead()
    const [[replaced], refused] = await nodes.meet(replace(scene, jobId), retry(jobId))
    expect(replaced).toMatchObject({ kind: 'created' })
    expect(refused).toMatchObject({ kind: 'refused', reason: 'ALREADY_REPLACED', byJobId: Object(replaced).jobId })
    expect(await counted(scene, jobId)).toEqual([0, 1])
  })

  test('the second of two replacements is refused', async () => {
    const { scene, jobId } = await dead()
    const met = await nodes.meet(replace(scene, jobId, 'one'), replace(scene, jobId, 'other'))
    expect(met).toMatchObject([[{ kind: 'created' }], [ALREADY_REPLACED]])
    expect(await counted(scene, jobId)).toEqual([0, 1])
    expect(await letters(scene)).toEqual([])
  })

  test('a replacement that is sent twice gets the same answer', async () => {
    const { scene, jobId } = await dead()
    const [[first], [second]] = await nodes.meet(replace(scene, jobId, 'same'), replace(scene, jobId, 'same'))
    expect(second).toEqual({ ...first, kind: 'replayed', due: false })
    expect(await counted(scene, jobId)).toEqual([0, 1])
  })

  test('a replacement after a redrive is refused', async () => {
    const { scene, jobId } = await dead()
    const step = await redriving(scene, nodes.a())
    expect(await nodes.meet(step, replace(scene, jobId))).toMatchObject([{ retried: [{ jobId }] }, [NOT_ENDED]])
    expect(await counted(scene, jobId)).toEqual([1, 0])
  })

  test('a redrive skips a replaced job', async () => {
    const { scene, jobId } = await dead()
    const step = await redriving(scene, nodes.a())
    expect(await nodes.meet(replace(scene, jobId), step)).toMatchObject([[{ kind: 'created' }], { retried: [] }])
    expect(await counted(scene, jobId)).toEqual([0, 1])
  })
})

test("a redrive that waits for a user's lock does not block the renewal of the term", async () => {
  const scene = new Scene(nodes.a())
  await nodes.a().write(setQuota(scene.userId, { maxConcurrent: 9, costLimitMicros: null, period: 'day' }))
  const jobId = await makeOneDead(scene)
  const term = await lead(nodes.a())
  const step = await redriving(scene, nodes.a(), term)
  const held = await nodes.gate()
  const submitting = nodes.a().write(held.hold(submitJobs([scene.item()], renderForTest)))
  await held.reached()
  const stepping = nodes.b().write(step)
  await held.someoneWaits()
  expect(await nodes.a().write(renewTerm(term, 60_000))).toMatchObject({ held: true })
  await held.open()
  await submitting
  expect(await stepping).toMatchObject({ retried: [{ jobId }] })
})

test('random interleaving: of a retry and two replacements exactly one succeeds', async () => {
  for (let round = 0; round < size(20, 1_000); round++) {
    const scene = new Scene(nodes.a())
    const jobId = await makeOneDead(scene)
    await Promise.all([
      nodes.a().write(retry(jobId)),
      nodes.b().write(replace(scene, jobId)),
      nodes.a().write(replace(scene, jobId)),
    ])
    const [retried, replaced] = await counted(scene, jobId)
    expect(retried + replaced).toBe(1)
  }
})

eachEngine(({ store }) => {
  async function dead() {
    const scene = new Scene(store())
    return { scene, jobId: await makeOneDead(scene) }
  }

  test('of two replacements in a batch one succeeds, and a refused one blocks no other', async () => {
    const { scene, jobId } = await dead()
    const [first, second] = await scene.submitAll([replaceItem(scene, jobId), replaceItem(scene, jobId)])
    expect([first, second]).toMatchObject([
      { kind: 'created' },
      { kind: 'refused', refusal: { code: 'ALREADY_REPLACED', replaces: { byJobId: Object(first).jobId } } },
    ])
    const other = await dead()
    const late = { ...replaceItem(other.scene, other.jobId), runAtMs: 1e15 }
    expect(await other.scene.submitAll([late, replaceItem(other.scene, other.jobId)])).toMatchObject([
      { kind: 'refused', refusal: { code: 'INVALID_PAYLOAD' } },
      { kind: 'created' },
    ])
    expect(await counted(other.scene, other.jobId)).toEqual([0, 1])
  })

  test('of a concurrent retry, redrive and replacement exactly one succeeds', async () => {
    const { scene, jobId } = await dead()
    const step = await redriving(scene, store())
    await Promise.all([
      store().write(replace(scene, jobId)),
      store().write(step),
      store().write(retry(jobId)),
      store().write(replace(scene, jobId)),
    ])
    const [retried, replaced] = await counted(scene, jobId)
    expect(retried + replaced).toBe(1)
    expect(await letters(scene)).toEqual([])
  })

  test('a refused replacement keeps the dead letter', async () => {
    const { scene, jobId } = await dead()
    await store().write(setQuota(scene.userId, { maxConcurrent: 0, costLimitMicros: null, period: 'day' }))
    expect(await scene.submitAll([replaceItem(scene, jobId)])).toMatchObject([{ refusal: { code: 'QUOTA_EXCEEDED' } }])
    expect(await letters(scene)).toMatchObject([{ job_id: jobId }])
    expect(await scene.submitAll([replaceItem(scene, v7())])).toMatchObject([{ refusal: { code: 'NOT_FOUND' } }])
  })

  test('replacing a job that was retried and died again removes its dead letter', async () => {
    const { scene, jobId } = await dead()
    await store().write(retry(jobId))
    await failAll(scene)
    expect(await scene.submitAll([replaceItem(scene, jobId)])).toMatchObject([{ kind: 'created' }])
    expect(await letters(scene)).toEqual([])
  })
})

describe.each(ENGINES)('the service on %s', (engine) => {
  test('of a concurrent retry and two replacements exactly one succeeds', async () => {
    const { services, close } = await testServices(engine)
    for (let round = 0; round < size(5, 50); round++) {
      const scene = new Scene(services.deps.store)
      const jobId = await makeOneDead(scene)
      const settled = await Promise.allSettled([
        services.deadLetters.replace(LOCAL_ADMIN, jobId, { fixed: true }, null),
        services.deadLetters.retry(LOCAL_ADMIN, jobId),
        services.deadLetters.replace(LOCAL_ADMIN, jobId, { fixed: 2 }, null),
      ])
      const refused = settled.flatMap((one) => (one.status === 'rejected' ? one.reason.code : []))
      expect(refused).toHaveLength(2)
      expect(['NOT_ENDED', 'ALREADY_REPLACED']).toEqual(expect.arrayContaining(refused))
    }
    await close()
  })
})
