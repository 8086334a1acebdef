import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { heartbeatBatch } from '../../../src/store/leasing/heartbeat-runs.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import {
  createEnrollToken,
  findWorkerToken,
  noteSeen,
  type RegisterItem,
  registerWorker,
  renewToken,
  revokeWorker,
  settleToken,
} from '../../../src/store/workers/workers.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { finished, leasesFor, only, Scene } from '../../../src/testing/store/scene.ts'
import { sql, unique } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL run two commands on one worker. The result is that of one order, and a revocation is final. */

const nodes = twoNodes()
const HOUR_MS = 3_600_000

async function enrolled(workerId: string | null = null): Promise<string> {
  const tokenHash = unique('enroll')
  const item = { tokenHash, label: null, queues: null, createdBy: 'ann', ttlMs: HOUR_MS, workerId }
  await nodes.a().write(createEnrollToken(item))
  return tokenHash
}

function registerItem(enrollHash: string, changes: Partial<RegisterItem> = {}): RegisterItem {
  return {
    enrollHash,
    registerHash: unique('register'),
    newWorkerId: v7(),
    claim: null,
    name: null,
    queues: null,
    meta: null,
    tokenHash: unique('token'),
    tokenTtlMs: HOUR_MS,
    graceMs: 1_000,
    auditId: v7(),
    ...changes,
  }
}

/** A registered worker with its own queue. */
async function newScene(): Promise<Scene & { tokenHash: string }> {
  const item = registerItem(await enrolled())
  await nodes.a().write(registerWorker(item))
  return Object.assign(new Scene(nodes.a()), { workerId: item.newWorkerId, tokenHash: item.tokenHash })
}

const revoke = ({ workerId }: Scene) => revokeWorker(workerId, 'ann', v7())
const tokensOf = ({ workerId }: Scene) =>
  sql(nodes.a(), 'SELECT token_hash, revoked_at, expires_at FROM ichido.worker_tokens WHERE worker_id = $1', workerId)
const liveLeases = ({ workerId }: Scene) =>
  sql(nodes.a(), 'SELECT id FROM ichido.runs WHERE assigned_worker_id = $1 AND lease_id IS NOT NULL', workerId)

describe('two registrations with one enroll token', () => {
  test('the first registration that commits creates the worker', async () => {
    const enrollHash = await enrolled()
    const [first, second] = [registerItem(enrollHash), registerItem(enrollHash)]
    expect(await nodes.meet(registerWorker(first), registerWorker(second))).toMatchObject([
      { kind: 'registered', workerId: first.newWorkerId },
      { kind: 'refused', reason: 'token' },
    ])
    const found = 'SELECT worker_id FROM ichido.workers WHERE worker_id IN ($1, $2)'
    expect(await sql(nodes.a(), found, first.newWorkerId, second.newWorkerId)).toEqual([
      { worker_id: first.newWorkerId },
    ])
    expect(await nodes.a().read(findWorkerToken(second.tokenHash))).toBeNull()
  })

  test('the same registration, sent twice, creates one worker with two tokens', async () => {
    const enrollHash = await enrolled()
    const first = registerItem(enrollHash)
    const again = registerItem(enrollHash, { registerHash: first.registerHash })
    expect(await nodes.meet(registerWorker(first), registerWorker(again))).toMatchObject([
      { kind: 'registered', workerId: first.newWorkerId },
      { kind: 'registered', workerId: first.newWorkerId },
    ])
    expect(await nodes.a().read(findWorkerToken(again.tokenHash))).toMatchObject({ workerId: first.newWorkerId })
  })
})

describe('a revocation races with a lease', () => {
  test.each([[['work']], [[]]])('a lease that commits first is fenced: kinds %j', async (kinds) => {
    const scene = await newScene()
    await scene.submitted()
    const [leases, revoked] = await nodes.meet(leasesFor([scene.leaseItem({ kinds })]), revoke(scene))
    expect(leases).toMatchObject([[{ attempt: 1 }]])
    expect(revoked).toMatchObject({ kind: 'revoked', leases: 1 })
    expect(await liveLeases(scene)).toEqual([])
  })

  test('a worker that was revoked first gets no lease', async () => {
    const scene = await newScene()
    const jobId = await scene.submitted()
    const [revoked, leases] = await nodes.meet(revoke(scene), leasesFor([scene.leaseItem()]))
    expect(revoked).toMatchObject({ kind: 'revoked', leases: 0 })
    expect(leases).toEqual([[]])
    expect(await scene.state(jobId)).toBe('PENDING')
  })

  test('polls on both nodes during the revocation leave no lease behind', async () => {
    for (let round = 0; round < size(5, 100); round++) {
      const scene = await newScene()
      await scene.submitAll(Array.from({ length: 40 }, () => scene.item()))
      let revoked = false
      const poll = async (node: ReturnType<typeof nodes.a>) => {
        while (!revoked) await node.write(leasesFor([scene.leaseItem({ max: 2, startId: 'start' })]))
        return node.write(leasesFor([scene.leaseItem()]))
      }
      const end = async () => {
        await nodes.b().write(leasesFor([scene.leaseItem()]))
        await nodes.a().write(revoke(scene))
        revoked = true
      }
      const [a, b] = await Promise.all([poll(nodes.a()), poll(nodes.b()), end()])
      expect([a, b]).toEqual([[[]], [[]]])
      expect(await liveLeases(scene)).toEqual([])
    }
  })
})

describe("a revocation races with a worker's calls on its lease", () => {
  test('a finish that commits first is recorded', async () => {
    const scene = await newScene()
    const lease = await scene.running()
    expect(await nodes.meet(finishBatch([scene.endItem(lease, finished())]), revoke(scene))).toMatchObject([
      [{ kind: 'recorded', state: 'SUCCEEDED' }],
      { kind: 'revoked', leases: 0 },
    ])
  })

  test('a finish after the revocation is refused and changes nothing', async () => {
    const scene = await newScene()
    const lease = await scene.running()
    expect(await nodes.meet(revoke(scene), finishBatch([scene.endItem(lease, finished())]))).toMatchObject([
      { kind: 'revoked', leases: 1 },
      [{ kind: 'refused', reason: 'LEASE_LOST' }],
    ])
    expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING', continuation_state: 'CONFIRMING' })
  })

  test('after a start that commits first, the run waits for the continuation time', async () => {
    const scene = await newScene()
    await scene.submitted()
    const lease = await scene.leased()
    expect(await nodes.meet(startBatch([scene.startItem(lease)]), revoke(scene))).toMatchObject([
      [{ kind: 'started' }],
      { kind: 'revoked', leases: 1, orphaned: [] },
    ])
    expect(await scene.run(lease.runId)).toMatchObject({ state: 'RUNNING', continuation_state: 'CONFIRMING' })
  })

  test('a start after the revocation is refused', async () => {
    const scene = await newScene()
    await scene.submitted()
    const lease = await scene.leased()
    expect(await nodes.meet(revoke(scene), startBatch([scene.startItem(lease)]))).toMatchObject([
      { kind: 'revoked', orphaned: [{ queue: scene.queue }] },
      [{ kind: 'refused' }],
    ])
    expect(await scene.run(lease.runId)).toMatchObject({ state: 'ORPHANED', started_at: null })
  })

  test.each(['first', 'after'] as const)('a heartbeat that comes %s does not keep the lease', async (order) => {
    const scene = await newScene()
    const lease = await scene.running()
    const beat = heartbeatBatch([scene.heartbeatItem(lease)])
    const [heartbeat] =
      order === 'first' ? await nodes.meet(beat, revoke(scene)) : (await nodes.meet(revoke(scene), beat)).toReversed()
    expect(heartbeat).toMatchObject([{ kind: order === 'first' ? 'extended' : 'refused' }])
    expect(await scene.run(lease.runId)).toMatchObject({ lease_id: null, continuation_state: 'CONFIRMING' })
  })
})

describe("a revocation races with the worker's tokens", () => {
  const renew = (scene: Scene & { tokenHash: string }, newTokenHash: string) =>
    renewToken({
      workerId: scene.workerId,
      tokenHash: scene.tokenHash,
      newTokenHash,
      ttlMs: HOUR_MS,
      keepMs: HOUR_MS,
      meta: null,
    })

  test('a token that was renewed first is revoked with the others', async () => {
    const scene = await newScene()
    expect(await nodes.meet(renew(scene, unique('new')), revoke(scene))).toMatchObject([
      { expiresAtMs: expect.any(Number) },
      { kind: 'revoked', tokens: 2 },
    ])
    for (const token of await tokensOf(scene)) expect(token.revoked_at).not.toBeNull()
  })

  test('a revoked worker cannot renew a token', async () => {
    const scene = await newScene()
    expect(await nodes.meet(revoke(scene), renew(scene, unique('new')))).toMatchObject([{ tokens: 1 }, null])
    expect(await tokensOf(scene)).toHaveLength(1)
  })

  test('a renewed token is revoked, even while it is used for the first time', async () => {
    const scene = await newScene()
    const fresh = unique('new')
    await nodes.a().write(renew(scene, fresh))
    await nodes.meet(settleToken(scene.workerId, fresh, 1_000), revoke(scene))
    expect(await nodes.b().read(findWorkerToken(fresh))).toMatchObject({ state: 'revoked', fresh: false })
  })

  test.each(['first', 'after'] as const)('registering again, which comes %s, creates no valid token', async (order) => {
    const scene = await newScene()
    const { workerId, tokenHash } = scene
    const item = registerItem(await enrolled(), { claim: { workerId, tokenHash } })
    const register = registerWorker(item)
    const [registered] =
      order === 'first'
        ? await nodes.meet(register, revoke(scene))
        : (await nodes.meet(revoke(scene), register)).toReversed()
    expect(registered).toMatchObject(
      order === 'first' ? { kind: 'registered', workerId } : { kind: 'refused', reason: 'revoked' },
    )
    const token = await nodes.a().read(findWorkerToken(item.tokenHash))
    expect(token?.state ?? 'none').toBe(order === 'first' ? 'revoked' : 'none')
  })

  test('only the first of two revocations takes effect', async () => {
    const scene = await newScene()
    await scene.running()
    const [first, second] = await nodes.meet(revoke(scene), revoke(scene))
    expect(first).toMatchObject({ kind: 'revoked', leases: 1 })
    expect(second).toEqual({ kind: 'repeated', revokedAtMs: first?.revokedAtMs })
    const audit = `SELECT id FROM ichido.audit WHERE action = 'worker.revoke' AND subject = $1`
    only(await sql(nodes.a(), audit, scene.workerId))
  })
})

describe('noting when a worker was last seen waits for no lock', () => {
  test('a worker that is being revoked is skipped', async () => {
    const [scene, other] = [await newScene(), await newScene()]
    await sql(nodes.a(), 'UPDATE ichido.workers SET last_seen_at = 1')
    const signs = [scene.workerId, other.workerId].sort().map((workerId) => ({ workerId, agoMs: 0 }))
    await nodes.meet(revoke(scene), noteSeen(signs))
    const text = 'SELECT worker_id FROM ichido.workers WHERE last_seen_at > 1'
    expect(await sql(nodes.a(), text)).toEqual([{ worker_id: other.workerId }])
  })

  test('a worker that is leasing is noted', async () => {
    const scene = await newScene()
    await scene.submitted()
    await sql(nodes.a(), 'UPDATE ichido.workers SET last_seen_at = 1')
    await nodes.meet(leasesFor([scene.leaseItem()]), noteSeen([{ workerId: scene.workerId, agoMs: 0 }]))
    const text = 'SELECT worker_id FROM ichido.workers WHERE last_seen_at > 1'
    expect(await sql(nodes.a(), text)).toEqual([{ worker_id: scene.workerId }])
  })
})
