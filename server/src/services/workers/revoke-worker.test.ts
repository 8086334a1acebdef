import { describe, expect, test } from 'vitest'
import { EmbeddedBus } from '../../bus/embedded.ts'
import type { Topic } from '../../bus/port.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { registered } from '../../testing/services/workers.ts'
import { integer, text } from '../../testing/store/rows.ts'
import { only, Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'

const operator = callerOf('operator')
const woken: Topic[] = []
const bus = new EmbeddedBus()
const wake = bus.wake.bind(bus)
bus.wake = (topics) => {
  woken.push(...topics)
  wake(topics)
}

eachServices(
  ({ services }) => {
    const workers = () => services().workers
    const store = () => services().deps.store

    /** A registered worker with its own queue. */
    async function scene(): Promise<Scene & { token: string }> {
      const { worker_id: workerId, worker_token: token } = await registered(services())
      return Object.assign(new Scene(store()), { workerId, token })
    }

    /** Another worker on the same queue. */
    const beside = ({ queue }: Scene) => Object.assign(new Scene(store()), { queue })

    test('assigned runs go to the next worker at once', async () => {
      const given = await scene()
      const jobId = await given.submitted()
      const lease = await given.leased()
      woken.length = 0
      expect(await workers().revoke(operator, given.workerId)).toEqual({
        worker_id: given.workerId,
        revoked_at: expect.any(String),
        fenced_leases: 1,
        revoked_tokens: 1,
      })
      expect(await given.run(lease.runId)).toMatchObject({
        state: 'ORPHANED',
        version: lease.version + 1,
        lease_id: null,
        poll_id: null,
        continuation_state: 'NONE',
      })
      expect(woken).toEqual([`queue:${given.queue}`, `job:${jobId}`])
      expect((await given.events(jobId)).at(-1)).toEqual({ state: 'ORPHANED', attempt: 1 })

      expect(await given.start(lease)).toMatchObject({ kind: 'refused' })
      expect(await beside(given).leased()).toMatchObject({ jobId, attempt: 2, runId: lease.runId })
      expect(await given.start(lease)).toMatchObject({ kind: 'refused', reason: 'LEASE_LOST' })
    })

    test('running runs are kept from others, and reports on them do not count', async () => {
      const given = await scene()
      const lease = await given.running()
      expect(await workers().revoke(operator, given.workerId)).toMatchObject({ fenced_leases: 1 })
      const fenced = await given.run(lease.runId)
      expect(fenced).toMatchObject({ state: 'RUNNING', version: lease.version, lease_id: null, poll_id: null })

      expect(await given.heartbeat(lease)).toMatchObject({ kind: 'refused', reason: 'LEASE_LOST' })
      expect(await given.finish(lease)).toMatchObject({ kind: 'refused', reason: 'LEASE_LOST' })
      expect(await given.fail(lease)).toMatchObject({ kind: 'refused', reason: 'LEASE_LOST' })
      expect(await given.start(lease)).toMatchObject({ kind: 'refused' })
      expect(await beside(given).lease()).toEqual([])
      expect(await given.run(lease.runId)).toEqual(fenced)
      expect(await workers().get(operator, given.workerId)).toMatchObject({ state: 'revoked', live_leases: 0 })
    })

    test.each([
      { job: undefined, queue: null, seconds: 60 },
      { job: undefined, queue: 200, seconds: 200 },
      { job: 7, queue: 200, seconds: 7 },
      { job: 0, queue: 200, seconds: 0 },
    ])('the deadline: job $job, queue $queue: $seconds s', async ({ job, queue, seconds }) => {
      const given = await scene()
      await sql(store(), 'INSERT INTO ichido.queues (name, continuation_seconds) VALUES ($1, $2)', given.queue, queue)
      const lease = await given.running(job === undefined ? {} : { policy: { continuation_seconds: job } })
      await workers().revoke(operator, given.workerId)
      const run = await given.run(lease.runId)
      expect(run.continuation_state).toBe('CONFIRMING')
      const revokedAtMs = Date.parse((await workers().get(operator, given.workerId)).revoked_at ?? '')
      const waitMs = integer(run, 'continuation_check_deadline_at') - revokedAtMs
      expect(waitMs).toBeGreaterThanOrEqual(seconds * 1000)
      expect(waitMs).toBeLessThan(seconds * 1000 + 5_000)
      expect(integer(run, 'lease_expires_at')).toBeLessThan(revokedAtMs + 5_000)
    })

    test('a run that is already confirming keeps its deadline', async () => {
      const given = await scene()
      const lease = await given.running()
      const text = `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', continuation_check_deadline_at = 4711,
        lease_expires_at = 17 WHERE id = $1`
      await sql(store(), text, lease.runId)
      await workers().revoke(operator, given.workerId)
      expect(await given.run(lease.runId)).toMatchObject({
        continuation_state: 'CONFIRMING',
        continuation_check_deadline_at: 4711,
        lease_expires_at: 17,
        lease_id: null,
      })
    })

    test('only the live leases of the worker are fenced', async () => {
      const given = await scene()
      const ended = await given.running()
      await given.finish(ended)
      const running = [await given.running(), await given.running()]
      await given.submitted()
      const assigned = await given.leased()
      const other = beside(given)
      const theirs = await other.running()
      expect(await workers().get(operator, given.workerId)).toMatchObject({ live_leases: 3 })

      expect(await workers().revoke(operator, given.workerId)).toMatchObject({ fenced_leases: 3 })
      expect(await given.run(ended.runId)).toMatchObject({ state: 'SUCCEEDED' })
      for (const { runId } of running)
        expect(await given.run(runId)).toMatchObject({ continuation_state: 'CONFIRMING' })
      expect(await given.run(assigned.runId)).toMatchObject({ state: 'ORPHANED' })
      expect(await other.finish(theirs)).toMatchObject({ kind: 'recorded' })
    })

    test('a repeated revocation changes nothing, and the audit has one entry', async () => {
      const given = await scene()
      const lease = await given.running()
      const first = await workers().revoke(operator, given.workerId)
      const run = await given.run(lease.runId)
      expect(await workers().revoke(operator, given.workerId)).toEqual({
        ...first,
        fenced_leases: 0,
        revoked_tokens: 0,
      })
      expect(await given.run(lease.runId)).toEqual(run)
      const query = `SELECT actor, before, after FROM ichido.audit WHERE action = 'worker.revoke' AND subject = $1`
      const audit = only(await sql(store(), query, given.workerId))
      expect(audit).toMatchObject({ actor: operator.userId })
      expect(JSON.parse(text(audit, 'after'))).toEqual({ fenced_leases: 1 })
    })

    describe('its token', () => {
      test('is refused as revoked, also after it has expired', async () => {
        const given = await scene()
        expect(await workers().authenticate(given.token)).toMatchObject({ workerId: given.workerId })
        await workers().revoke(operator, given.workerId)
        expect(await workers().authenticate(given.token)).toBe('revoked')
        await sql(store(), 'UPDATE ichido.worker_tokens SET expires_at = 0 WHERE worker_id = $1', given.workerId)
        expect(await workers().authenticate(given.token)).toBe('revoked')
      })
    })
  },
  { bus },
)
