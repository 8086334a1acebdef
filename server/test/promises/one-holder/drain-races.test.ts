import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { submitAndLease } from '../../../src/store/submission/submit-and-lease.ts'
import { drainWorker, resumeWorker } from '../../../src/store/workers/workers.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { finished, leasesFor, only, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL: after the commit of a drain, no statement leases to the worker. */

const nodes = twoNodes()

/** A registered worker with its own queue, and a known user: only submissions of known users are plain. */
async function newScene(): Promise<Scene> {
  const scene = new Scene(nodes.a())
  const insert = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', 'null', 0)`
  await sql(nodes.a(), insert, scene.workerId)
  await scene.cancel(await scene.submitted())
  return scene
}

const by = () => ({ actor: 'ann', id: v7() })
const drain = ({ workerId }: Scene) => drainWorker(workerId, by())
const resume = ({ workerId }: Scene) => resumeWorker(workerId, by())
const DRAINS = { kind: 'shown', worker: { draining_since: expect.any(Number) } }
const RESUMED = { kind: 'shown', worker: { draining_since: null } }
const heldBy = ({ workerId }: Scene) =>
  sql(nodes.a(), 'SELECT job_id FROM ichido.held WHERE worker_id = $1 ORDER BY job_id', workerId)
const submitFor = (scene: Scene) =>
  submitAndLease([scene.item()], { polls: [scene.leaseItem({ startId: 'start' })], from: null }, renderForTest)

describe('a drain races with a lease', () => {
  // With one kind, the lease is one statement.
  const KINDS = [[['work']], [[]]]

  test.each(KINDS)('a lease that commits first is kept and can be finished: kinds %j', async (kinds) => {
    const scene = await newScene()
    await scene.submitted()
    const [leases, drained] = await nodes.meet(leasesFor([scene.leaseItem({ kinds, startId: 'start' })]), drain(scene))
    expect(drained).toMatchObject({ ...DRAINS, worker: { live_leases: 1, ...DRAINS.worker } })
    const end = finishBatch([scene.endItem(only(only(leases)), finished())])
    expect(await nodes.b().write(end)).toMatchObject([{ kind: 'recorded', state: 'SUCCEEDED' }])
  })

  test.each(KINDS)('a lease that waited for the drain gets nothing: kinds %j', async (kinds) => {
    const scene = await newScene()
    const jobId = await scene.submitted()
    const [drained, leases] = await nodes.meet(drain(scene), leasesFor([scene.leaseItem({ kinds })]))
    expect(drained).toMatchObject(DRAINS)
    expect(leases).toEqual([[]])
    expect(await scene.state(jobId)).toBe('PENDING')
  })

  test('a lease for several workers still serves the others', async () => {
    const [scene, other] = [await newScene(), await newScene()]
    await scene.submitted()
    const items = [scene.leaseItem(), { ...other.leaseItem(), queues: [scene.queue] }]
    const [, leases] = await nodes.meet(drain(scene), leasesFor(items))
    expect(leases).toMatchObject([[], [{ workerId: other.workerId }]])
  })

  test('polls on both nodes lease nothing after the answer to the drain', async () => {
    for (let round = 0; round < size(5, 100); round++) {
      const scene = await newScene()
      await scene.submitAll(Array.from({ length: 40 }, () => scene.item()))
      let over = false
      const poll = async (node: ReturnType<typeof nodes.a>) => {
        while (!over) await node.write(leasesFor([scene.leaseItem({ startId: 'start' })]))
      }
      const polls = [poll(nodes.a()), poll(nodes.b())]
      await nodes.b().write(leasesFor([scene.leaseItem()]))
      await nodes.a().write(drain(scene))
      const held = await heldBy(scene)
      for (const node of [nodes.a(), nodes.b()]) await node.write(leasesFor([scene.leaseItem({ kinds: [] })]))
      over = true
      await Promise.all(polls)
      expect(await heldBy(scene)).toEqual(held)
    }
  })
})

describe('a drain races with a submission that a waiting poll leases', () => {
  test('a lease that commits first is kept', async () => {
    const scene = await newScene()
    const [submitted, drained] = await nodes.meet(submitFor(scene), drain(scene))
    expect(submitted).toMatchObject({ kind: 'leased' })
    expect(drained).toMatchObject({ ...DRAINS, worker: { live_leases: 1, ...DRAINS.worker } })
  })

  test('a submission during the drain does not wait, and leases nothing', async () => {
    const scene = await newScene()
    const [drained, submitted] = await nodes.pass(drain(scene), () => nodes.b().write(submitFor(scene)))
    expect(drained).toMatchObject(DRAINS)
    expect(submitted).toEqual({ kind: 'declined', plain: true })
    expect(await nodes.b().write(submitFor(scene))).toEqual({ kind: 'declined', plain: true })
    expect(await heldBy(scene)).toEqual([])
  })

  test('submissions on both nodes lease nothing after the answer to the drain', async () => {
    for (let round = 0; round < size(5, 100); round++) {
      const scene = await newScene()
      let over = false
      const submit = async (node: ReturnType<typeof nodes.a>) => {
        while (!over) await node.write(submitFor(scene))
      }
      const submissions = [submit(nodes.a()), submit(nodes.b())]
      await nodes.b().write(submitFor(scene))
      await nodes.a().write(drain(scene))
      const held = await heldBy(scene)
      for (const node of [nodes.a(), nodes.b()]) await node.write(submitFor(scene))
      over = true
      await Promise.all(submissions)
      expect(await heldBy(scene)).toEqual(held)
    }
  })
})

describe('a drain races with a resume', () => {
  test.each(['drain', 'resume'] as const)('the command that commits last wins: %s first', async (first) => {
    const scene = await newScene()
    if (first === 'resume') await nodes.a().write(drain(scene))
    await scene.submitted()
    const answers =
      first === 'drain' ? await nodes.meet(drain(scene), resume(scene)) : await nodes.meet(resume(scene), drain(scene))
    expect(answers).toMatchObject(first === 'drain' ? [DRAINS, RESUMED] : [RESUMED, DRAINS])
    const leases = await nodes.b().write(leasesFor([scene.leaseItem()]))
    expect(only(leases)).toHaveLength(first === 'drain' ? 1 : 0)
  })

  test.each([drain, resume])('of two equal commands the second changes nothing: %o', async (change) => {
    const scene = await newScene()
    if (change === resume) await nodes.a().write(drain(scene))
    const count = 'SELECT count(*) AS entries FROM ichido.audit WHERE subject = $1'
    const [before] = await sql(nodes.a(), count, scene.workerId)
    const [one, other] = await nodes.meet(change(scene), change(scene))
    expect(other).toEqual({
      ...one,
      worker: { ...(one as never as { worker: object }).worker, now: expect.anything() },
    })
    const [after] = await sql(nodes.a(), count, scene.workerId)
    expect(Number(after?.entries)).toBe(Number(before?.entries) + 1)
  })
})
