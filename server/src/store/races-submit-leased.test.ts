import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../scripts/testing/size.ts'
import { only, renderForTest, Scene } from '../testing/scene.ts'
import { sql } from '../testing/store.ts'
import { twoNodes } from '../testing/two-nodes.ts'
import { type LeaseItem, leaseBatch } from './commands/lease-runs.ts'
import { putQueue, type QueueSettings } from './commands/queues.ts'
import { setQuota } from './commands/quotas.ts'
import type { SubmitItem } from './commands/submission.ts'
import { type Awaiting, type LeasedSubmission, submitLeased } from './commands/submit-leased.ts'
import { revokeWorker } from './commands/workers.ts'
import type { Command } from './port.ts'
import type { Row } from './statement.ts'

/** A submission that is leased in the same statement by somebody who waits for it. */

const nodes = twoNodes()

/** With a worker that can be revoked, and a user who is known: only such a one's submissions are plain. */
async function newScene(): Promise<Scene> {
  const scene = new Scene(nodes.a())
  const insert = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', '[]', 0)`
  await sql(nodes.a(), insert, scene.workerId)
  await scene.cancel(await scene.submitted())
  return scene
}

function offered(
  items: readonly SubmitItem[],
  polls: readonly LeaseItem[],
  from: Awaiting['from'] = null,
): Command<LeasedSubmission> {
  return submitLeased(items, { polls, from }, renderForTest)
}

const NONE = { maxConcurrent: null, costLimitMicros: null, period: 'day' } as const
const put = (scene: Scene, settings: Partial<QueueSettings>) =>
  nodes.b().write(putQueue(scene.queue, settings, { id: v7(), actor: 'op' }))

describe('what it leaves behind is what a submit and a lease after it leave behind', () => {
  const OF_THIS_RUN = ['id', 'job_id', 'lease_id', 'poll_id', 'fair_tag']
  const TIMES = ['run_at', 'created_at', 'assigned_at', 'started_at', 'lease_expires_at']

  function comparable(row: Row): Row {
    const created = Number(row.created_at)
    const times = TIMES.map((name) => [
      name,
      row[name] === null ? null : Math.round((Number(row[name]) - created) / 5_000),
    ])
    return {
      ...Object.fromEntries(Object.entries(row).filter(([name]) => !OF_THIS_RUN.includes(name))),
      ...Object.fromEntries(times),
    }
  }

  test.each<[string, Partial<LeaseItem>, Partial<SubmitItem>]>([
    ['assigned', {}, {}],
    ['started at once', { startId: 'start' }, {}],
    ['with times of its own', { startId: 'start' }, { policy: { lease_ttl_seconds: 90, continuation_seconds: 7 } }],
    ['with all that a worker is told', { kinds: [] }, { priority: 3, traceparent: 'trace', payload: '{"a":[1]}' }],
  ])('%s', async (_, poll, job) => {
    const scene = await newScene()
    await put(scene, { leaseTtlSeconds: 33 })
    const item = scene.item({ ...job, key: 'k' })
    const { outcomes, leases } = await nodes.a().write(offered([item], [scene.leaseItem(poll)]))
    const lease = only(leases ?? [])
    expect(outcomes).toMatchObject([{ kind: 'created', jobId: item.jobId, due: false }])

    const otherId = await scene.submitted({ ...job, key: 'other' })
    const other = await scene.leased(poll)
    expect(comparable(await scene.run(lease.runId))).toEqual(comparable(await scene.run(other.runId)))
    expect(await scene.events(item.jobId)).toEqual(await scene.events(otherId))
    const told = { jobId: '', runId: '', leaseId: '', fairTag: 0, leaseExpiresAtMs: 0 }
    expect({ ...lease, ...told }).toEqual({ ...other, ...told })
    expect(Math.abs(lease.leaseExpiresAtMs - other.leaseExpiresAtMs)).toBeLessThan(5_000)
    expect(await scene.submit({ ...job, key: 'k' })).toMatchObject({ kind: 'replayed', jobId: item.jobId })
    expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
    if (poll.startId === undefined) expect(await scene.start(lease)).toMatchObject({ kind: 'started' })
    expect(await scene.finish(lease)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })
  })

  test('several at once, to several polls', async () => {
    const scene = await newScene()
    const items = Array.from({ length: 5 }, (_, i) => scene.item({ payload: String(i), fairTag: i }))
    const [first, second] = [scene.leaseItem({ max: 3 }), scene.leaseItem({ max: 2 })]
    const polls = [first, first, first, second, second]
    const { leases } = await nodes.a().write(offered(items, polls))
    expect(leases?.map(({ payload }) => payload)).toEqual(['0', '1', '2', '3', '4'])
    const [again, too] = await nodes.b().write(leaseBatch([first, second]))
    expect([...(again ?? []), ...(too ?? [])]).toEqual(leases)
  })
})

describe('it is submitted alone, and nothing is leased,', () => {
  async function submittedAlone(scene: Scene, command: Command<LeasedSubmission>, kind = 'created'): Promise<void> {
    const held = `SELECT count(*) AS held FROM ichido.runs WHERE queue = $1 AND state IN ('ASSIGNED', 'RUNNING')`
    const before = await sql(nodes.a(), held, scene.queue)
    expect(await nodes.a().write(command)).toMatchObject({ outcomes: [{ kind }], leases: null })
    expect(await sql(nodes.a(), held, scene.queue)).toEqual(before)
  }

  test.each<[string, Partial<QueueSettings>]>([
    ['while the queue is paused', { paused: true }],
    ['when the queue has a limit', { maxConcurrent: 5 }],
  ])('%s', async (_, settings) => {
    const scene = await newScene()
    await put(scene, settings)
    await submittedAlone(scene, offered([scene.item()], [scene.leaseItem()]))
  })

  test.each<[string, string[], string, boolean]>([
    ['when another of its kind has waited longer', ['work'], 'work', false],
    ['when another has waited longer that the poll asks for', ['rest', 'work'], 'rest', false],
    ['when any other has waited longer, for one who asks for all', [], 'rest', false],
    ['but not for what the poll does not ask for', ['work'], 'rest', true],
  ])('%s', async (_, kinds, waiting, goes) => {
    const scene = await newScene()
    await scene.submitted({ kind: waiting })
    const command = offered([scene.item({ priority: 9 })], [scene.leaseItem({ kinds })])
    if (goes) expect(await nodes.a().write(command)).toMatchObject({ leases: [{ priority: 9 }] })
    else await submittedAlone(scene, command)
  })

  test('when something waits behind the place that is given; what lies before it is left to the next full look', async () => {
    const scene = await newScene()
    await scene.submitted({ fairTag: 100 })
    const from = (fairTag: number) => offered([scene.item()], [scene.leaseItem()], { priority: 0, fairTag })
    expect(await nodes.a().write(from(101))).toMatchObject({ leases: [{ attempt: 1 }] })
    await submittedAlone(scene, from(100))
  })

  test('when the worker was revoked', async () => {
    const scene = await newScene()
    await nodes.b().write(revokeWorker(scene.workerId, 'ann', v7()))
    await submittedAlone(scene, offered([scene.item()], [scene.leaseItem()]))
  })

  test('when the poll was answered before', async () => {
    const scene = await newScene()
    await scene.submitted()
    const poll = scene.leaseItem()
    await nodes.b().write(leaseBatch([poll]))
    await submittedAlone(scene, offered([scene.item()], [poll]))
  })

  test('when the key was used: then it is a replay', async () => {
    const scene = await newScene()
    await scene.cancel(await scene.submitted({ key: 'k' }))
    await submittedAlone(scene, offered([scene.item({ key: 'k' })], [scene.leaseItem()]), 'replayed')
  })

  test('when it is not due yet, or its user has a limit', async () => {
    const scene = await newScene()
    await submittedAlone(scene, offered([scene.item({ delayMs: 60_000 })], [scene.leaseItem()]))
    await nodes.b().write(setQuota(scene.userId, { ...NONE, maxConcurrent: 1 }))
    await submittedAlone(scene, offered([scene.item()], [scene.leaseItem()]), 'refused')
  })
})

describe('it meets', () => {
  test('a revocation, which fences what was leased before', async () => {
    const scene = await newScene()
    const command = offered([scene.item()], [scene.leaseItem()])
    const [submitted, revoked] = await nodes.meet(command, revokeWorker(scene.workerId, 'ann', v7()))
    expect(submitted).toMatchObject({ leases: [{ attempt: 1 }] })
    expect(revoked).toMatchObject({ kind: 'revoked', leases: 1 })
  })

  test('a revocation that was first, and is waited for', async () => {
    const scene = await newScene()
    const item = scene.item()
    const [, submitted] = await nodes.meet(
      revokeWorker(scene.workerId, 'ann', v7()),
      offered([item], [scene.leaseItem()]),
    )
    expect(submitted).toMatchObject({ outcomes: [{ kind: 'created' }], leases: null })
    expect(await scene.state(item.jobId)).toBe('PENDING')
  })

  test('its own poll, asked again on another node: that gets the same lease', async () => {
    const scene = await newScene()
    const poll = scene.leaseItem()
    const [submitted, [again]] = await Promise.all([
      nodes.a().write(offered([scene.item()], [poll])),
      nodes.b().write(leaseBatch([poll])),
    ])
    const later = only(await nodes.b().write(leaseBatch([poll])))
    expect(later).toHaveLength(1)
    if (submitted.leases !== null) expect(later).toEqual(submitted.leases)
    expect([[], later]).toContainEqual(again)
  })

  test('its own poll on another node, which waits for it', async () => {
    const scene = await newScene()
    const poll = scene.leaseItem()
    const gate = await nodes.gate()
    const submitting = nodes.a().write(gate.hold(offered([scene.item()], [poll])))
    await gate.reached()
    const asking = nodes.b().write(leaseBatch([poll]))
    await gate.open()
    const [{ leases }, again] = await Promise.all([submitting, asking])
    expect(leases).toHaveLength(1)
    expect([[], leases]).toContainEqual(only(again))
  })

  test('another submission with the same key: one job, one lease', async () => {
    for (let round = 0; round < size(20, 500); round++) {
      const scene = await newScene()
      const items = [scene.item({ key: 'k' }), scene.item({ key: 'k' })]
      const found = await Promise.all(
        items.map((item, i) => (i === 0 ? nodes.a() : nodes.b()).write(offered([item], [scene.leaseItem()]))),
      )
      expect(found.flatMap(({ outcomes }) => outcomes.map(({ kind }) => kind)).sort()).toEqual(['created', 'replayed'])
      expect(found.flatMap(({ leases }) => leases ?? [])).toHaveLength(1)
      const jobs = await sql(nodes.a(), `SELECT DISTINCT job_id FROM ichido.runs WHERE queue = $1`, scene.queue)
      expect(jobs).toHaveLength(2)
    }
  })

  test('a limit for its user, which is waited for and kept', async () => {
    const scene = await newScene()
    const limit = setQuota(scene.userId, { ...NONE, maxConcurrent: 0 })
    const [, submitted] = await nodes.meet(limit, offered([scene.item()], [scene.leaseItem()]))
    expect(submitted).toMatchObject({ outcomes: [{ kind: 'refused' }], leases: null })
  })

  test('the revocation of a worker that waits on both nodes: no lease is left behind', async () => {
    for (let round = 0; round < size(5, 100); round++) {
      const scene = await newScene()
      let revoked = false
      const submit = async (node: ReturnType<typeof nodes.a>) => {
        while (!revoked) await node.write(offered([scene.item()], [scene.leaseItem({ startId: 'start' })]))
      }
      const end = async () => {
        await nodes.b().write(offered([scene.item()], [scene.leaseItem()]))
        await nodes.a().write(revokeWorker(scene.workerId, 'ann', v7()))
        revoked = true
      }
      await Promise.all([submit(nodes.a()), submit(nodes.b()), end()])
      const live = 'SELECT id FROM ichido.runs WHERE assigned_worker_id = $1 AND lease_id IS NOT NULL'
      expect(await sql(nodes.a(), live, scene.workerId)).toEqual([])
    }
  })
})
