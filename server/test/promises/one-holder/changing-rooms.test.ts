import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { publishBatch } from '../../../src/store/events/publish.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { EVERY_JOB, listJobs } from '../../../src/store/jobs/list-jobs.ts'
import { countJobs, findJob, type ListedJob } from '../../../src/store/jobs/read-jobs.ts'
import { retryJob } from '../../../src/store/jobs/retry-jobs.ts'
import { heartbeatBatch } from '../../../src/store/leasing/heartbeat-runs.ts'
import { type Leased, leaseBatch } from '../../../src/store/leasing/lease-runs.ts'
import { releaseBatch } from '../../../src/store/leasing/release-runs.ts'
import { findQuota, setQuota } from '../../../src/store/limits/quotas.ts'
import type { Command, Listed, Store } from '../../../src/store/port.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { integer, text } from '../../../src/testing/store/rows.ts'
import { failed, finished, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Runs change rooms on two nodes while others look for them: no job is ever missed, and none is ever in two rooms. */

const nodes = twoNodes()
const JOBS = size(150, 6_000)
const ROUNDS = size(250, 8_000)
const PAGE = 40

/** One statement, so one snapshot. */
const MISPLACED = `SELECT count(*) AS count FROM ichido.jobs j
  WHERE (SELECT count(*) FROM ichido.ready r WHERE r.job_id = j.id) + (SELECT count(*) FROM ichido.held r WHERE r.job_id = j.id)
    + (SELECT count(*) FROM ichido.ended r WHERE r.job_id = j.id AND r.latest) <> 1`

/** Numbers that differ from run to run, but not within one. */
function* numbers(): Generator<number, never> {
  for (let n = Date.now() % 1_000_000; ; n = (n * 48_271) % 2_147_483_647) yield n
}

interface Mover {
  store: Store
  scene: Scene
  held: Leased[]
  next(): number
}

const pick = <T>(list: readonly T[], n: number): T | undefined => list[n % Math.max(1, list.length)]

/** One random command. It may be refused: another mover was faster. */
async function move({ store, scene, held, next }: Mover, jobIds: readonly string[], counts: Counts): Promise<void> {
  const n = next()
  const lease = pick(held, n)
  const jobId = pick(jobIds, next()) ?? ''
  switch (n % 10) {
    case 0:
    case 1:
    case 2: {
      const startId = n % 2 === 0 ? 'start' : null
      const item = scene.leaseItem({ max: 5, startId, token: `t${v7().slice(0, 8)}` })
      for (const leased of (await store.write(leaseBatch([item]))).leases.flat()) held.push(leased)
      return
    }
    case 3:
      if (lease) await store.write(finishBatch([scene.endItem(lease, finished())]))
      return
    case 4: {
      if (!lease) return
      const item = scene.endItem(lease, failed(), { nextRunId: v7() })
      const [outcome] = await store.write(finishBatch([item]))
      if (outcome?.kind === 'recorded') counts.ended++
      return
    }
    case 5:
      if (lease) await store.write(releaseBatch([scene.releaseItem(lease, { nextRunId: v7() })]))
      return
    case 6: {
      const outcome = await store.write(cancelJob(jobId))
      expect(outcome, `the job ${jobId} was missed`).not.toMatchObject({ reason: 'NOT_FOUND' })
      return
    }
    case 7: {
      const outcome = await store.write(retryJob({ jobId, nextRunId: v7() }, 'ann', v7(), []))
      expect(outcome, `the job ${jobId} was missed`).not.toMatchObject({ reason: 'NOT_FOUND' })
      return
    }
    case 8: {
      if (!lease) return
      const events = [{ stage: 'progress', seq: next() % 900_000, data: '1' }]
      const item = { jobId: lease.jobId, workerId: lease.workerId, leaseId: lease.leaseId, events }
      await store.write(publishBatch([item], true))
      return
    }
    default:
      if (lease) await store.write(heartbeatBatch([scene.heartbeatItem(lease)]))
  }
}

interface Counts {
  ended: number
}

async function listAll(store: Store, userId: string): Promise<string[]> {
  const found: string[] = []
  let after: string | null = null
  do {
    const page: Listed<ListedJob> = await store.read(listJobs({ ...EVERY_JOB, userId }, PAGE, after))
    found.push(...page.rows.map((row) => row.job_id))
    after = page.next
  } while (after !== null)
  return found
}

describe('while runs change rooms', () => {
  test('a get, a list and a count see every job once, and events have no gap', { timeout: 1_800_000 }, async () => {
    const scene = new Scene(nodes.a())
    const jobIds: string[] = []
    for (let i = 0; i < JOBS; i++) jobIds.push(await scene.submitted({ policy: { max_attempts: 1_000 } }))
    const counts = { ended: 0 }
    let moving = true
    const mover = async (store: Store) => {
      const random = numbers()
      const self = { store, scene, held: [], next: () => random.next().value }
      for (let round = 0; round < ROUNDS; round++) await move(self, jobIds, counts)
    }
    const look = async (store: Store) => {
      const random = numbers()
      let looks = 0
      for (; moving; looks++) {
        const [row] = await sql(store, MISPLACED)
        expect(integer(row, 'count'), 'jobs that are in no room or in two').toBe(0)
        expect((await listAll(store, scene.userId)).length).toBe(JOBS)
        const counted = await store.read(countJobs())
        expect([...counted.values()].reduce((sum, count) => sum + count, 0)).toBe(JOBS)
        const jobId = pick(jobIds, random.next().value) ?? ''
        const found = await store.read(findJob(jobId))
        expect(found?.runs.map(({ run_no }) => run_no)).toEqual(found?.runs.map((_, i) => i + 1))
      }
      return looks
    }
    const looking = look(nodes.b())
    await Promise.all([mover(nodes.a()), mover(nodes.b()), mover(nodes.a())])
    moving = false
    expect(await looking).toBeGreaterThan(2)
    expect(counts.ended).toBeGreaterThan(0)
    expect(new Set(await listAll(nodes.a(), scene.userId))).toEqual(new Set(jobIds))
    for (const jobId of jobIds) {
      // `events()` fails on a gap. The last number is that of the run, in whichever room it is.
      const events = await scene.events(jobId)
      const [run] = await sql(nodes.a(), 'SELECT last_event_n FROM ichido.runs WHERE job_id = $1 AND latest', jobId)
      expect(events.length).toBe(integer(run, 'last_event_n'))
    }
  })

  test('a first limit counts the runs that leases are moving', async () => {
    const scene = new Scene(nodes.a())
    for (let i = 0; i < 3; i++) await scene.submitted()
    const limit = setQuota(scene.userId, { maxConcurrent: 3, costLimitMicros: null, period: 'month' })
    await nodes.meet(leaseBatch([scene.leaseItem({ max: 2 })]), limit)
    expect((await nodes.b().read(findQuota(scene.userId))).activeJobs).toBe(3)
    expect(await scene.submit()).toMatchObject({ kind: 'refused', refusal: { code: 'QUOTA_EXCEEDED' } })
  })

  test('a cancel that waits for a lease finds the run in the next room', async () => {
    const scene = new Scene(nodes.a())
    const jobId = await scene.submitted()
    const [leases, canceled] = await nodes.meet(leaseBatch([scene.leaseItem()]), cancelJob(jobId))
    expect(leases.leases.flat()).toHaveLength(1)
    expect(canceled).toEqual({ kind: 'canceled', queue: scene.queue, jobKind: 'work' })
    expect(text((await scene.runs(jobId))[0], 'state')).toBe('CANCELED')
  })

  test('a cancel that waits for a release finds the run in the room before', async () => {
    const scene = new Scene(nodes.a())
    await scene.submitted()
    const lease = await scene.leased()
    const [released, canceled] = await nodes.meet(releaseBatch([scene.releaseItem(lease)]), cancelJob(lease.jobId))
    expect(released).toMatchObject([{ kind: 'released', state: 'ORPHANED' }])
    expect(canceled).toEqual({ kind: 'canceled', queue: scene.queue, jobKind: 'work' })
    expect(await scene.lease()).toEqual([])
  })

  test('a cancel that waits for a failure finds the next run', async () => {
    const scene = new Scene(nodes.a())
    const lease = await scene.running()
    const fail = finishBatch([scene.endItem(lease, failed())])
    expect(await nodes.meet(fail, cancelJob(lease.jobId))).toMatchObject([[{ kind: 'recorded' }], { kind: 'canceled' }])
    expect((await scene.runs(lease.jobId)).map((row) => row.state)).toEqual(['FAILED', 'CANCELED'])
  })

  test('a publish that waits for each move is stored before it or refused after it', async () => {
    const scene = new Scene(nodes.a())
    const publish = ({ jobId, leaseId }: Leased, seq: number) =>
      publishBatch(
        [{ jobId, leaseId, workerId: scene.workerId, events: [{ stage: 'progress', seq, data: '1' }] }],
        true,
      )
    const moves: ((lease: Leased) => Command<unknown>)[] = [
      (lease) => finishBatch([scene.endItem(lease, finished())]),
      (lease) => finishBatch([scene.endItem(lease, failed())]),
      (lease) => releaseBatch([scene.releaseItem(lease)]),
    ]
    for (const moved of moves) {
      const lease = await scene.running()
      const [, [late]] = await nodes.meet(moved(lease), publish(lease, 1))
      expect(late).toMatchObject({ kind: 'refused' })
      await scene.events(lease.jobId)
      await scene.age(600_000)
      await scene.cancel(lease.jobId)
      const other = await scene.running()
      const [[early]] = await nodes.meet(publish(other, 1), moved(other))
      expect(early).toMatchObject({ kind: 'stored' })
      await scene.events(other.jobId)
      await scene.cancel(other.jobId)
    }
  })
})
