import pg from 'pg'
import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import type { LeaseItem } from '../../../src/store/leasing/lease-runs.ts'
import { putQueue, type QueueSettings } from '../../../src/store/leasing/queues.ts'
import { setQuota } from '../../../src/store/limits/quotas.ts'
import type { Command } from '../../../src/store/port.ts'
import type { Row } from '../../../src/store/statement.ts'
import type { SubmitItem } from '../../../src/store/submission/submission.ts'
import {
  type Awaiting,
  type SubmitAndLeaseOutcome,
  submitAndLease,
} from '../../../src/store/submission/submit-and-lease.ts'
import { revokeWorker } from '../../../src/store/workers/workers.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { leasesFor, only, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** A submission that a waiting poll leases in the same statement (submit-and-lease). */

const nodes = twoNodes()

/** A scene with a worker that can be revoked, and a known user: only submissions of known users are plain. */
async function newScene(): Promise<Scene> {
  const scene = new Scene(nodes.a())
  const insert = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', '[]', 0)`
  await sql(nodes.a(), insert, scene.workerId)
  await scene.cancel(await scene.submitted())
  return scene
}

function submitAndLeaseFor(
  items: readonly SubmitItem[],
  polls: readonly LeaseItem[],
  from: Awaiting['from'] = null,
): Command<SubmitAndLeaseOutcome> {
  return submitAndLease(items, { polls, from }, renderForTest)
}

function leased(submission: SubmitAndLeaseOutcome): Extract<SubmitAndLeaseOutcome, { kind: 'leased' }> {
  if (submission.kind !== 'leased') throw new Error(`It was ${submission.kind}`)
  return submission
}

const NONE = { maxConcurrent: null, costLimitMicros: null, period: 'day' } as const
const put = (scene: Scene, settings: Partial<QueueSettings>) =>
  nodes.b().write(putQueue(scene.queue, settings, { id: v7(), actor: 'op' }))

describe('submit-and-lease stores the same rows as a submit and then a lease', () => {
  const OF_THIS_RUN = ['id', 'run_id', 'job_id', 'token', 'lease_id', 'poll_id', 'fair_tag', 'leased_tx']
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
    ['an assigned run', {}, {}],
    ['an assigned and started run', { startId: 'start' }, {}],
    [
      'a run with its own lease TTL and continuation time',
      { startId: 'start' },
      { policy: { lease_ttl_seconds: 90, continuation_seconds: 7 } },
    ],
    [
      'a run with priority, trace and payload',
      { kinds: [] },
      { priority: 3, traceparent: 'trace', payload: '{"a":[1]}' },
    ],
  ])('%s', async (_, poll, job) => {
    const scene = await newScene()
    await put(scene, { leaseTtlSeconds: 33 })
    const item = scene.item({ ...job, key: 'k' })
    const { outcomes, leases } = leased(await nodes.a().write(submitAndLeaseFor([item], [scene.leaseItem(poll)])))
    const lease = only(leases)
    expect(outcomes).toMatchObject([{ kind: 'created', jobId: item.jobId, due: false }])

    const otherId = await scene.submitted({ ...job, key: 'other' })
    const other = await scene.leased(poll)
    expect(comparable(await scene.run(lease.runId))).toEqual(comparable(await scene.run(other.runId)))
    expect(await scene.events(item.jobId)).toEqual(await scene.events(otherId))
    const told = { jobId: '', runId: '', leaseId: '', fairTag: 0, leaseExpiresAtMs: 0 }
    expect(lease.waitedMs).toBe(other.waitedMs === null ? null : 0)
    expect({ ...lease, ...told, waitedMs: 0 }).toEqual({ ...other, ...told, waitedMs: 0 })
    expect(Math.abs(lease.leaseExpiresAtMs - other.leaseExpiresAtMs)).toBeLessThan(5_000)
    expect(await scene.submit({ ...job, key: 'k' })).toMatchObject({ kind: 'replayed', jobId: item.jobId })
    expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
    if (poll.startId === undefined) expect(await scene.start(lease)).toMatchObject({ kind: 'started' })
    expect(await scene.finish(lease)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })
  })

  test('several submissions go to several polls in one statement', async () => {
    const scene = await newScene()
    const items = Array.from({ length: 5 }, (_, i) => scene.item({ payload: String(i), fairTag: i }))
    const [first, second] = [scene.leaseItem({ max: 3 }), scene.leaseItem({ max: 2 })]
    const polls = [first, first, first, second, second]
    const { leases } = leased(await nodes.a().write(submitAndLeaseFor(items, polls)))
    expect(leases.map(({ payload }) => payload)).toEqual(['0', '1', '2', '3', '4'])
    const [again, too] = await nodes.b().write(leasesFor([first, second]))
    expect([...(again ?? []), ...(too ?? [])]).toEqual(leases)
  })
})

describe('submit-and-lease declines and changes nothing', () => {
  async function declined(command: Command<SubmitAndLeaseOutcome>, plain: boolean): Promise<void> {
    const count = `SELECT (SELECT count(*) FROM ichido.runs) AS runs, (SELECT count(*) FROM ichido.jobs) AS jobs,
      (SELECT count(*) FROM ichido.idempotency_keys) AS keys, (SELECT count(*) FROM ichido.events) AS events`
    const before = await sql(nodes.a(), count)
    expect(await nodes.a().write(command)).toEqual({ kind: 'declined', plain })
    expect(await sql(nodes.a(), count)).toEqual(before)
  }

  test.each<[string, Partial<QueueSettings>]>([
    ['it declines while the queue is paused', { paused: true }],
    ['it declines if the queue has a limit', { maxConcurrent: 5 }],
  ])('%s', async (_, settings) => {
    const scene = await newScene()
    await put(scene, settings)
    await declined(submitAndLeaseFor([scene.item()], [scene.leaseItem()]), true)
  })

  test.each<[string, string[], string, boolean]>([
    ['it declines if a run of the same kind has waited longer', ['work'], 'work', false],
    ['it declines if a run of another kind of the poll has waited longer', ['rest', 'work'], 'rest', false],
    ['it declines for a poll of all kinds if any run has waited longer', [], 'rest', false],
    ['it does not decline for a run of a kind that the poll did not name', ['work'], 'rest', true],
  ])('%s', async (_, kinds, waiting, goes) => {
    const scene = await newScene()
    await scene.submitted({ kind: waiting })
    const command = submitAndLeaseFor([scene.item({ priority: 9 })], [scene.leaseItem({ kinds })])
    if (goes) expect(await nodes.a().write(command)).toMatchObject({ leases: [{ priority: 9 }] })
    else await declined(command, true)
  })

  test('it declines for a run behind the given place, and ignores runs before that place', async () => {
    const scene = await newScene()
    await scene.submitted({ fairTag: 100 })
    const from = (fairTag: number) => submitAndLeaseFor([scene.item()], [scene.leaseItem()], { priority: 0, fairTag })
    expect(await nodes.a().write(from(101))).toMatchObject({ leases: [{ attempt: 1 }] })
    await declined(from(100), true)
  })

  test('it declines if the worker was revoked', async () => {
    const scene = await newScene()
    await nodes.b().write(revokeWorker(scene.workerId, 'ann', v7()))
    await declined(submitAndLeaseFor([scene.item()], [scene.leaseItem()]), true)
  })

  test('it declines if the poll was answered before', async () => {
    const scene = await newScene()
    await scene.submitted()
    const poll = scene.leaseItem()
    await nodes.b().write(leasesFor([poll]))
    await declined(submitAndLeaseFor([scene.item()], [poll]), true)
  })

  test('it declines for a used key, a delay, a limited user and an unknown user', async () => {
    const scene = await newScene()
    await scene.cancel(await scene.submitted({ key: 'k' }))
    await declined(submitAndLeaseFor([scene.item({ key: 'k' })], [scene.leaseItem()]), false)
    await declined(submitAndLeaseFor([scene.item({ delayMs: 60_000 })], [scene.leaseItem()]), false)
    await declined(submitAndLeaseFor([scene.item({ userId: v7() })], [scene.leaseItem()]), false)
    await nodes.b().write(setQuota(scene.userId, { ...NONE, maxConcurrent: 1 }))
    await declined(submitAndLeaseFor([scene.item()], [scene.leaseItem()]), false)
  })

  test.each<[string, (scene: Scene) => [string, string], boolean]>([
    ['its worker', ({ workerId }) => ['SELECT 1 FROM ichido.workers WHERE worker_id = $1 FOR UPDATE', workerId], true],
    ['its user', ({ userId }) => ['SELECT 1 FROM ichido.quotas WHERE user_id = $1 FOR UPDATE', userId], false],
    ['its poll', () => ['SELECT pg_advisory_xact_lock(hashtextextended($1, 0))', 'poll'], true],
    ['its key', ({ userId }) => [KEY, userId], false],
  ])('it declines instead of waiting for a lock on %s', async (_, held, plain) => {
    const scene = await newScene()
    const client = new pg.Client(nodes.url())
    await client.connect()
    try {
      await client.query('BEGIN')
      const poll = scene.leaseItem()
      const [text, name] = held(scene)
      await client.query(text, [name === 'poll' ? JSON.stringify([poll.workerId, poll.pollId]) : name])
      await declined(submitAndLeaseFor([scene.item({ key: 'k' })], [poll]), plain)
    } finally {
      await client.end()
    }
  })
})

const KEY = `INSERT INTO ichido.idempotency_keys (idempotency_key, user_id, operation, request_hash, hash_version, job_id,
    response_status, response_body, created_at, expires_at)
  VALUES ('k', $1, 'submit', 'hash', 1, gen_random_uuid(), 201, '', 0, 0)`

describe('submit-and-lease races with another command', () => {
  test('a later revocation fences the lease', async () => {
    const scene = await newScene()
    const command = submitAndLeaseFor([scene.item()], [scene.leaseItem()])
    const [submitted, revoked] = await nodes.meet(command, revokeWorker(scene.workerId, 'ann', v7()))
    expect(submitted).toMatchObject({ leases: [{ attempt: 1 }] })
    expect(revoked).toMatchObject({ kind: 'revoked', leases: 1 })
  })

  test('an earlier revocation is not waited for', async () => {
    const scene = await newScene()
    const command = submitAndLeaseFor([scene.item()], [scene.leaseItem()])
    const [, submitted] = await nodes.meet(revokeWorker(scene.workerId, 'ann', v7()), command)
    expect(submitted).toEqual({ kind: 'declined', plain: true })
  })

  test('the same poll on another node gets the same lease', async () => {
    const scene = await newScene()
    const poll = scene.leaseItem()
    const gate = await nodes.gate()
    const submitting = nodes.a().write(gate.hold(submitAndLeaseFor([scene.item()], [poll])))
    await gate.reached()
    const asking = nodes.b().write(leasesFor([poll]))
    await gate.open()
    const { leases } = leased(await submitting)
    expect([[], leases]).toContainEqual(only(await asking))
    // The repeated poll also extends the lease.
    const kept = leases.map((lease) => ({ ...lease, leaseExpiresAtMs: expect.any(Number) }))
    expect(await nodes.b().write(leasesFor([poll]))).toEqual([kept])
  })

  test('it declines while another node answers its poll', async () => {
    const scene = await newScene()
    const poll = scene.leaseItem()
    await scene.submitted()
    const [answer, submitted] = await nodes.meet(leasesFor([poll]), submitAndLeaseFor([scene.item()], [poll]))
    expect(answer).toMatchObject([[{ attempt: 1 }]])
    expect(submitted).toEqual({ kind: 'declined', plain: true })
  })

  test('two submissions with the same key create one job and one lease', async () => {
    for (let round = 0; round < size(20, 500); round++) {
      const scene = await newScene()
      const items = [scene.item({ key: 'k' }), scene.item({ key: 'k' })]
      const found = await Promise.all(
        items.map((item, i) => (i === 0 ? nodes.a() : nodes.b()).write(submitAndLeaseFor([item], [scene.leaseItem()]))),
      )
      expect(found.map(({ kind }) => kind).sort()).toEqual(['declined', 'leased'])
      const jobs = await sql(nodes.a(), `SELECT DISTINCT job_id FROM ichido.runs WHERE queue = $1`, scene.queue)
      expect(jobs).toHaveLength(2)
    }
  })

  test('a new limit of its user waits for the statement, or makes it decline', async () => {
    const scene = await newScene()
    const limit = setQuota(scene.userId, { ...NONE, maxConcurrent: 1 })
    const command = () => submitAndLeaseFor([scene.item()], [scene.leaseItem()])
    expect(await nodes.meet(command(), limit)).toMatchObject([{ kind: 'leased' }, undefined])
    expect(await scene.submit()).toMatchObject({ kind: 'refused' })
    const other = await newScene()
    const [, submitted] = await nodes.meet(
      setQuota(other.userId, { ...NONE, maxConcurrent: 0 }),
      submitAndLeaseFor([other.item()], [other.leaseItem()]),
    )
    expect(submitted).toEqual({ kind: 'declined', plain: false })
  })

  test('revoking a worker that waits on both nodes leaves no lease behind', async () => {
    for (let round = 0; round < size(5, 100); round++) {
      const scene = await newScene()
      let revoked = false
      const submit = async (node: ReturnType<typeof nodes.a>) => {
        while (!revoked) await node.write(submitAndLeaseFor([scene.item()], [scene.leaseItem({ startId: 'start' })]))
      }
      const end = async () => {
        await nodes.b().write(submitAndLeaseFor([scene.item()], [scene.leaseItem()]))
        await nodes.a().write(revokeWorker(scene.workerId, 'ann', v7()))
        revoked = true
      }
      await Promise.all([submit(nodes.a()), submit(nodes.b()), end()])
      const live = 'SELECT id FROM ichido.runs WHERE assigned_worker_id = $1 AND lease_id IS NOT NULL'
      expect(await sql(nodes.a(), live, scene.workerId)).toEqual([])
    }
  })
})
