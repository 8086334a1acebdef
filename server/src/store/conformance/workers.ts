import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'
import type { Command } from '../port.ts'
import {
  createEnrollToken,
  drainWorker,
  findWorker,
  findWorkerToken,
  registerWorker,
  renewToken,
  resumeWorker,
  revokeWorker,
  settleToken,
} from '../workers/workers.ts'
import type { Given } from './given.ts'

const HOUR_MS = 3_600_000

/** A COMMIT whose answer got lost is answered by executing the same command again: it must find what it did. */
export function workerConformance({ store }: Given): void {
  describe('commands on workers, executed again', () => {
    const twice = async <T>(command: Command<T>): Promise<[T, T]> => [
      await store().write(command),
      await store().write({ ...command, work: () => command.work(true) }),
    ]

    async function enroll(): Promise<string> {
      const tokenHash = unique('enroll')
      const item = { tokenHash, label: null, queues: null, createdBy: 'ann', ttlMs: HOUR_MS, workerId: null }
      const [first, again] = await twice(createEnrollToken(item))
      expect(again).toEqual(first)
      return tokenHash
    }

    async function register(): Promise<{ workerId: string; tokenHash: string }> {
      const [workerId, tokenHash] = [v7(), unique('token')]
      const [first, again] = await twice(
        registerWorker({
          enrollHash: await enroll(),
          registerHash: unique('register'),
          newWorkerId: workerId,
          claim: null,
          name: 'pc',
          queues: ['a'],
          meta: '{}',
          tokenHash,
          tokenTtlMs: HOUR_MS,
          graceMs: 0,
          auditId: v7(),
        }),
      )
      expect(first).toMatchObject({ kind: 'registered', workerId, name: 'pc', queues: ['a'] })
      expect(again).toEqual(first)
      expect(await store().read(findWorkerToken(tokenHash))).toMatchObject({ state: 'valid' })
      return { workerId, tokenHash }
    }

    test('enroll and register make one worker and one audit entry', async () => {
      const { workerId } = await register()
      const audit = await sql(store(), 'SELECT action FROM ichido.audit WHERE subject = $1', workerId)
      expect(audit).toEqual([{ action: 'worker.register' }])
    })

    test('renew makes one token', async () => {
      const { workerId, tokenHash } = await register()
      const newTokenHash = unique('token')
      const times = { ttlMs: 2 * HOUR_MS, keepMs: HOUR_MS, meta: null }
      const [first, again] = await twice(renewToken({ workerId, tokenHash, newTokenHash, ...times }))
      expect(first).not.toBeNull()
      expect(again).toEqual(first)
      await twice(settleToken(workerId, newTokenHash, 0))
      expect(await store().read(findWorkerToken(newTokenHash))).toMatchObject({ state: 'valid', fresh: false })
      expect(await store().read(findWorkerToken(tokenHash))).toMatchObject({ state: 'expired' })
    })

    test('revoke fences once', async () => {
      const { workerId } = await register()
      const scene = Object.assign(new Scene(store()), { workerId })
      const jobId = await scene.submitted()
      await scene.leased()
      const [first, again] = await twice(revokeWorker(workerId, 'ann', v7()))
      expect(first).toMatchObject({ kind: 'revoked', leases: 1, tokens: 1, orphaned: [{ jobId }] })
      expect(again).toEqual({ kind: 'repeated', revokedAtMs: first?.revokedAtMs })
      const states = (await scene.events(jobId)).map((event) => (event as { state: string }).state)
      expect(states).toEqual(['PENDING', 'ASSIGNED', 'ORPHANED'])
    })

    test('drain keeps what the worker holds, and does not undo a resume', async () => {
      const { workerId } = await register()
      const scene = Object.assign(new Scene(store()), { workerId })
      const [first, second] = [await scene.submitted(), await scene.submitted()]
      const [lease] = [await scene.leased({ pollId: 'lost' })]
      const by = { actor: 'ann', id: v7() }
      const drain = drainWorker(workerId, by)
      const [drained, again] = await twice(drain)
      expect(again).toMatchObject({ kind: 'shown', worker: { draining_since: expect.any(Number) } })
      expect(drained).toMatchObject({
        worker: { live_leases: 1, holds: [{ job_id: first, kind: 'work', attempt: 1 }] },
      })
      expect(await scene.lease()).toEqual([])
      expect(await scene.lease({ kinds: [] })).toEqual([])
      expect(await scene.lease({ pollId: 'lost', named: true }), 'the lost answer').toMatchObject([{ jobId: first }])
      expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
      expect(await scene.start(lease)).toMatchObject({ kind: 'started' })
      expect(await scene.finish(lease)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })

      const [, resumed] = await twice(resumeWorker(workerId, { actor: 'ann', id: v7() }))
      expect(resumed).toMatchObject({ worker: { draining_since: null, live_leases: 0, holds: [] } })
      await store().write({ ...drain, work: () => drain.work(true) })
      expect(await store().read(findWorker(workerId))).toMatchObject({ draining_since: null })
      expect(await scene.lease()).toMatchObject([{ jobId: second }])
      const audit = await sql(store(), 'SELECT action FROM ichido.audit WHERE subject = $1 ORDER BY id', workerId)
      expect(audit.map(({ action }) => action)).toEqual(['worker.register', 'worker.drain', 'worker.resume'])
    })

    test('a run that a draining worker gives back goes to another worker', async () => {
      const { workerId } = await register()
      const scene = Object.assign(new Scene(store()), { workerId })
      const jobId = await scene.submitted()
      const lease = await scene.leased()
      await store().write(drainWorker(workerId, { actor: 'ann', id: v7() }))
      expect(await scene.release(lease)).toMatchObject({ kind: 'released' })
      expect(await scene.lease()).toEqual([])
      expect(await scene.lease({ workerId: unique('other') })).toMatchObject([{ jobId, attempt: 2 }])
    })
  })
}
