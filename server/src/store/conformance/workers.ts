import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'
import type { Command } from '../port.ts'
import {
  createEnrollToken,
  findWorkerToken,
  registerWorker,
  renewToken,
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
      const times = { ttlMs: 2 * HOUR_MS, keepMs: HOUR_MS }
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
  })
}
