import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { putQueue, type QueueSettings } from '../../../src/store/leasing/queues.ts'
import { submitAndLease } from '../../../src/store/submission/submit-and-lease.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { integer } from '../../../src/testing/store/rows.ts'
import { leasesFor, only, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** A queue is paused or limited for the first time while another node leases from it. */

const nodes = twoNodes()
const put = (scene: Scene, settings: Partial<QueueSettings>) =>
  putQueue(scene.queue, settings, { id: v7(), actor: 'op' })
const submitting = (scene: Scene) =>
  submitAndLease([scene.item()], { polls: [scene.leaseItem()], from: null }, renderForTest)

/** A scene with this many jobs, and a known user, whose submissions are plain. */
async function newScene(jobs: number): Promise<Scene> {
  const scene = new Scene(nodes.a())
  await scene.cancel(await scene.submitted())
  for (let i = 0; i < jobs; i++) await scene.submitted()
  return scene
}

async function held({ queue }: Scene): Promise<number> {
  const count = `SELECT count(*) AS held FROM ichido.runs WHERE queue = $1 AND state IN ('ASSIGNED', 'RUNNING')`
  return integer(only(await sql(nodes.a(), count, queue)), 'held')
}

const FIRST: [string, Partial<QueueSettings>][] = [
  ['paused', { paused: true }],
  ['limited', { maxConcurrent: 2 }],
]

describe.each(FIRST)('before the queue is %s', (_, settings) => {
  test.each<[string, string[], string | null]>([
    ['took in one statement', ['work'], null],
    ['took', [], null],
    ['is about to take', [], 'enter_lease'],
  ])('the change waits for runs that a lease %s, and counts them', async (_, kinds, after) => {
    const scene = await newScene(4)
    const lease = () => leasesFor([scene.leaseItem({ max: 2, kinds })])
    const gate = await nodes.gate()
    const leasing = nodes.a().write(gate.hold(lease(), after))
    await gate.reached()
    const putting = nodes.b().write(put(scene, settings))
    await Promise.race([gate.someoneWaits(), putting])
    await gate.open()
    expect(only(await leasing)).toHaveLength(2)
    expect((await putting).counts, 'all that will be held are told').toMatchObject({ running: 2 })
    expect(only(await nodes.b().write(lease()))).toEqual([])
    expect(await held(scene)).toBe(2)
  })

  test('the change waits for submit-and-lease, and counts its run', async () => {
    const scene = await newScene(0)
    const [submitted, { counts }] = await nodes.meet(submitting(scene), put(scene, settings))
    expect(submitted).toMatchObject({ kind: 'leased' })
    expect(counts).toMatchObject({ running: 1 })
  })
})

describe.each(FIRST)('while the queue is being %s', (_, settings) => {
  test.each<[string[]]>([[['work']], [[]]])('a lease waits, and then respects the change: kinds %j', async (kinds) => {
    const scene = await newScene(4)
    const lease = () => leasesFor([scene.leaseItem({ max: 4, kinds })])
    const [, answer] = await nodes.meet(put(scene, settings), lease())
    const taken = [...only(answer), ...only(await nodes.b().write(lease()))]
    expect(taken).toHaveLength(settings.paused ? 0 : 2)
    expect(await held(scene)).toBe(taken.length)
  })

  test('submit-and-lease declines and does not wait', async () => {
    const scene = await newScene(0)
    const [, submitted] = await nodes.meet(put(scene, settings), submitting(scene))
    expect(submitted).toEqual({ kind: 'declined', plain: true })
  })
})

test('leases from one queue wait neither for each other nor for a change of its times', async () => {
  const scene = await newScene(2)
  const lease = () => leasesFor([scene.leaseItem()])
  const gate = await nodes.gate()
  const leasing = nodes.a().write(gate.hold(lease()))
  await gate.reached()
  expect(only(await nodes.b().write(lease()))).toHaveLength(1)
  expect(await nodes.b().write(put(scene, { leaseTtlSeconds: 60 }))).toMatchObject({ counts: { running: 1 } })
  await gate.open()
  expect(only(await leasing)).toHaveLength(1)
})
