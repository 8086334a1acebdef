import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { overhear } from '../../testing/http/overhear.ts'
import { retry } from '../../testing/store/dead-letters.ts'
import { failed, finished, Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { cancelJob } from '../jobs/cancel-or-delete.ts'
import { countStates, EVERY_JOB, type JobFilter, listJobs } from '../jobs/list-jobs.ts'
import { countJobs, findJob, findJobs } from '../jobs/read-jobs.ts'
import type { Command } from '../port.ts'
import { finishBatch } from '../runs/finish-runs.ts'
import type { Row, Step } from '../statement.ts'
import { consumeSlot } from '../submission/reservations.ts'
import type { Given } from './given.ts'

export function jobConformance({ store }: Given): void {
  describe('cancel', () => {
    test.each(['PENDING', 'ASSIGNED', 'ORPHANED', 'delayed', 'waiting for its retry'])(
      'of a job that is %s ends it',
      async (state) => {
        const scene = new Scene(store())
        const jobId = await scene.submitted({ delayMs: state === 'delayed' ? 60_000 : 0 })
        if (state === 'ASSIGNED' || state === 'ORPHANED') await scene.leased()
        if (state === 'ORPHANED')
          await sql(store(), `UPDATE ichido.runs SET state = $2 WHERE job_id = $1`, jobId, state)
        if (state === 'waiting for its retry') await scene.fail(await scene.leased({ startId: 's' }))
        const version = (await scene.runs(jobId)).at(-1)?.version
        expect(await scene.cancel(jobId)).toEqual({ kind: 'canceled', queue: scene.queue, jobKind: 'work' })
        const run = (await scene.runs(jobId)).at(-1)
        expect(run).toMatchObject({ state: 'CANCELED', version: Number(version) + 1, finished_at: expect.any(Number) })
        expect(await scene.cancel(jobId)).toEqual({ kind: 'repeated' })
        await scene.age(600_000)
        expect(await scene.lease()).toEqual([])
        expect((await scene.events(jobId)).at(-1)).toMatchObject({ state: 'CANCELED' })
      },
    )

    test('of a RUNNING job asks its worker, and a second cancel changes nothing', async () => {
      const scene = new Scene(store())
      const { jobId, runId } = await scene.running()
      expect(await scene.cancel(jobId)).toEqual({ kind: 'requested', workerId: scene.workerId })
      const before = await scene.run(runId)
      expect(before).toMatchObject({ state: 'RUNNING', version: 2, cancel_requested_at: expect.any(Number) })
      await scene.age(1_000)
      expect(await scene.cancel(jobId)).toEqual({ kind: 'requested', workerId: scene.workerId })
      expect((await scene.run(runId)).cancel_requested_at).toBe(before.cancel_requested_at)
    })

    test('of an ended or unknown job is refused', async () => {
      const scene = new Scene(store())
      const done = await scene.running()
      await scene.finish(done)
      expect(await scene.cancel(done.jobId)).toEqual({ kind: 'refused', reason: 'ALREADY_ENDED', state: 'SUCCEEDED' })
      const dead = await scene.running({ policy: { max_attempts: 1 } })
      await scene.fail(dead)
      expect(await scene.cancel(dead.jobId)).toMatchObject({ reason: 'ALREADY_ENDED', state: 'FAILED' })
      expect(await scene.cancel(v7())).toEqual({ kind: 'refused', reason: 'NOT_FOUND', state: null })
    })
  })

  describe('reading', () => {
    test('a job has all its runs and its key, and an unknown job is null', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ key: 'a/b' })
      await scene.fail(await scene.leased({ startId: 's' }))
      const found = await store().read(findJob(jobId))
      expect(found?.runs.map((run) => [run.run_no, run.state])).toEqual([
        [1, 'FAILED'],
        [2, 'PENDING'],
      ])
      expect(found).toMatchObject({ key: 'a/b', job: { job_id: jobId, state: 'PENDING', retry_count: 1 } })
      expect(await store().read(findJob(v7()))).toBeNull()
      expect(await store().read(findJobs([v7(), jobId, v7()]))).toMatchObject([{ job_id: jobId }])
    })

    test('only the statement that shows a job reads its payload', async () => {
      const scene = new Scene(store())
      const running = () => scene.running({ estimatedCostMicros: 1_000 })
      const [failing, finishing, waiting] = [await running(), await running(), await scene.submitted()]
      const reservation = v7()
      await scene.reserve(60_000, reservation)
      for (const reading of [
        finishBatch([scene.endItem(failing, failed())]),
        finishBatch([scene.endItem(finishing, finished({ costMicros: 2_000 }))]),
        consumeSlot(reservation, scene.userId, waiting),
        cancelJob(waiting),
        findJobs([failing.jobId, waiting]),
        listJobs({ ...EVERY_JOB, userId: scene.userId }, 10, null),
      ]) {
        const read = await columnsRead(reading)
        expect(read, reading.name).toContain('user_id')
        expect(read, reading.name).not.toContain('payload')
      }
      expect(await columnsRead(findJob(waiting))).toContain('payload')
    })

    test('jobs are counted by the state of their latest run', async () => {
      const before = await store().read(countJobs())
      const scene = new Scene(store())
      await scene.submitted()
      const lease = await scene.leased({ startId: 's' })
      await scene.fail(lease)
      await scene.running()
      const after = await store().read(countJobs())
      const grown = (state: string) => (after.get(state) ?? 0) - (before.get(state) ?? 0)
      expect([grown('PENDING'), grown('RUNNING'), grown('FAILED')]).toEqual([1, 1, 0])
    })
  })

  describe('a list of jobs', () => {
    test('comes newest first, in pages without gaps or repeats while jobs are added', async () => {
      const scene = new Scene(store())
      const jobs: string[] = []
      for (let i = 0; i < 7; i++) jobs.unshift(await scene.submitted())
      const seen: string[] = []
      let after: string | null = null
      do {
        const page = await listed({ userId: scene.userId }, 3, after)
        seen.push(...page.ids)
        after = page.next
        await scene.submitted()
      } while (after !== null)
      expect(seen).toEqual(jobs)
      expect(await listed({ userId: scene.userId }, 10, null)).toMatchObject({ next: null })
      expect(await listed({ userId: unique('nobody') }, 10, null)).toEqual({ ids: [], next: null })
    })

    test('comes oldest first if asked, in pages of every job, also where no index serves the filter', async () => {
      const scene = new Scene(store())
      const jobs: string[] = []
      for (let i = 0; i < 7; i++) jobs.push(await scene.submitted())
      for (const filter of [{ userId: scene.userId }, { userId: scene.userId, text: 'work' }]) {
        const seen: string[] = []
        let after: string | null = null
        do {
          const page: Awaited<ReturnType<typeof oldest>> = await oldest(filter, after)
          seen.push(...page.rows.map(({ job_id }) => job_id))
          after = page.next
        } while (after !== null)
        expect(seen).toEqual(jobs)
      }
      function oldest(filter: Partial<JobFilter>, after: string | null) {
        return store().read(listJobs({ ...EVERY_JOB, ...filter }, 3, after, { order: 'oldest', scanMax: 2 }))
      }
    })

    test('filters by one or several states, and has each job once', async () => {
      const scene = new Scene(store())
      const running = await scene.running()
      const done = await scene.running()
      await scene.finish(done)
      const waiting = await scene.submitted()
      const { userId } = scene
      expect(await ids({ userId, states: ['RUNNING'] })).toEqual([running.jobId])
      expect(await ids({ userId, states: ['PENDING', 'SUCCEEDED'] })).toEqual([waiting, done.jobId])
      expect(await ids({ userId, states: ['PENDING', 'PENDING'] })).toEqual([waiting])
      expect(await ids({ userId, states: ['CANCELED'] })).toEqual([])
      expect(await ids({ queue: scene.queue, states: ['RUNNING', 'PENDING', 'SUCCEEDED'] })).toEqual([
        waiting,
        done.jobId,
        running.jobId,
      ])
    })

    test('with several states continues where the last page ended', async () => {
      const scene = new Scene(store())
      const jobs: string[] = []
      for (let i = 0; i < 9; i++) {
        const jobId = await scene.submitted()
        if (i % 3 === 1) await scene.cancel(jobId)
        if (i % 3 === 2) await scene.finish(await scene.leased({ startId: 's', max: 1 }))
        jobs.unshift(jobId)
      }
      const filter = { userId: scene.userId, states: ['PENDING', 'CANCELED', 'SUCCEEDED'] }
      const first = await listed(filter, 4, null)
      const second = await listed(filter, 4, first.next)
      const third = await listed(filter, 4, second.next)
      expect([...first.ids, ...second.ids, ...third.ids]).toEqual(jobs)
      expect(third.next).toBeNull()
    })

    test('has a retried job once, with the state of its latest run', async () => {
      const scene = new Scene(store())
      const lease = await scene.running()
      await scene.fail(lease)
      expect(await ids({ userId: scene.userId })).toEqual([lease.jobId])
      expect(await ids({ userId: scene.userId, states: ['FAILED'] })).toEqual([])
      expect(await ids({ queue: scene.queue, states: ['PENDING'] })).toEqual([lease.jobId])
    })

    test('filters by queue, kind, label and key, alone and together', async () => {
      const scene = new Scene(store())
      const { queue, userId } = scene
      const a = await scene.submitted({ kind: 'a', labels: { team: 'x', env: 'p' }, key: 'k1' })
      const b = await scene.submitted({ kind: 'b', labels: { team: 'x' }, key: 'k2' })
      const c = await scene.submitted({ kind: 'a', labels: { team: 'y' } })
      expect(await ids({ queue })).toEqual([c, b, a])
      expect(await ids({ queue, kind: 'a' })).toEqual([c, a])
      expect(await ids({ userId, label: { name: 'team', value: 'x' } })).toEqual([b, a])
      expect(await ids({ queue, label: { name: 'env', value: 'p' }, states: ['PENDING'] })).toEqual([a])
      expect(await ids({ userId, key: 'k2' })).toEqual([b])
      expect(await ids({ userId, key: 'k2', kind: 'a' })).toEqual([])
      expect(
        await ids({ userId, key: 'k1', label: { name: 'team', value: 'x' }, states: ['PENDING'], kind: 'a' }),
      ).toEqual([a])
      expect(await ids({ userId: unique('nobody'), queue })).toEqual([])
    })

    test('filters by creation time: from the first instant, before the second', async () => {
      const scene = new Scene(store())
      const jobs = [await scene.submitted(), await scene.submitted(), await scene.submitted()]
      const at = (await store().read(findJobs(jobs))).map((row) => Number(row.created_at))
      for (const [i, jobId] of jobs.entries()) {
        await sql(store(), 'UPDATE ichido.jobs SET created_at = $2 WHERE id = $1', jobId, (at[0] ?? 0) + i * 1_000)
      }
      const between = (fromMs: number | null, toMs: number | null) =>
        ids({
          userId: scene.userId,
          createdFromMs: fromMs === null ? null : (at[0] ?? 0) + fromMs,
          createdToMs: toMs === null ? null : (at[0] ?? 0) + toMs,
        })
      expect(await between(0, null)).toEqual([jobs[2], jobs[1], jobs[0]])
      expect(await between(1, 2_000)).toEqual([jobs[1]])
      expect(await between(null, 1_000)).toEqual([jobs[0]])
      expect(await between(2_001, null)).toEqual([])
      expect(await between(-(at[0] ?? 0), Number.MAX_SAFE_INTEGER - (at[0] ?? 0))).toHaveLength(3)
    })
  })

  describe('a filter that no index serves', () => {
    const failWith = async (scene: Scene, code: string, message: string, changes = {}) => {
      const jobId = await scene.submitted(changes)
      const [lease] = await scene.lease({ max: 1, startId: 's' })
      if (lease === undefined) throw new Error('It was not leased')
      await store().write(finishBatch([scene.endItem(lease, failed({ code, message }, false))]))
      return jobId
    }

    test('finds an error code of the latest run, a text in each place, and nothing else', async () => {
      const scene = new Scene(store())
      const broken = await failWith(scene, 'BROKEN', 'Disk 100% full')
      const odd = await failWith(scene, 'ODD', 'no such host')
      const labeled = await scene.submitted({ labels: { team: 'Alpha_One' } })
      const loaded = await scene.submitted({ payload: JSON.stringify({ city: 'Kyoto' }) })
      const long = await scene.submitted({ payload: JSON.stringify({ city: 'Kyoto', more: 'x'.repeat(5_000) }) })
      const mine = (filter: Partial<JobFilter>) => ids({ userId: scene.userId, ...filter })
      expect(await mine({ errorCode: 'BROKEN' })).toEqual([broken])
      expect(await mine({ errorCode: 'BROKEN', states: ['FAILED', 'PENDING'] })).toEqual([broken])
      expect(await mine({ errorCode: 'BROKEN', states: ['PENDING'] })).toEqual([])
      expect(await mine({ errorCode: 'ODD', text: 'NO SUCH' })).toEqual([odd])
      expect(await mine({ text: 'disk 100%' })).toEqual([broken])
      expect(await mine({ text: 'disk 1_0' })).toEqual([])
      expect(await mine({ text: 'ALPHA_' })).toEqual([labeled])
      expect(await mine({ text: 'kyoto' })).toEqual([loaded])
      expect(await mine({ text: 'wor' })).toEqual([long, loaded, labeled, odd, broken])
      expect(await mine({ text: 'team' })).toEqual([])
      await store().write(retry(broken))
      expect(await mine({ errorCode: 'BROKEN' })).toEqual([])
    })

    test('finds jobs that are due for a time, and that no worker has', async () => {
      const scene = new Scene(store())
      const old = await scene.submitted()
      const delayed = await scene.submitted({ delayMs: 3_600_000 })
      await scene.age(60_000)
      const young = await scene.submitted()
      const waiting = (seconds: number, more: Partial<JobFilter> = {}) =>
        ids({ userId: scene.userId, waitingLongerThanMs: seconds * 1000, ...more })
      expect(await waiting(30)).toEqual([old])
      expect(await waiting(30, { states: ['RUNNING'] })).toEqual([])
      expect(await waiting(90)).toEqual([])
      await scene.age(3_600_000)
      expect(await waiting(1)).toEqual([young, delayed, old])
      await scene.lease({ max: 1, startId: 's' })
      expect(await waiting(1)).toHaveLength(2)
    })

    test('is read in pages of a bounded size, each job once, to the last', async () => {
      const scene = new Scene(store())
      const wanted: string[] = []
      for (let i = 0; i < 23; i++) {
        const jobId = await scene.submitted({ kind: i % 7 === 0 ? 'rare' : 'work' })
        if (i % 7 === 0) wanted.unshift(jobId)
      }
      const filter = { ...EVERY_JOB, userId: scene.userId, text: 'RARE' }
      const found: string[] = []
      const sizes: number[] = []
      for (let after: string | null = null; ; ) {
        const { rows, next }: Awaited<ReturnType<typeof page>> = await page(after)
        found.push(...rows.map(({ job_id }) => job_id))
        sizes.push(rows.length)
        if (next === null) break
        after = next
      }
      expect(found).toEqual(wanted)
      // Each page looks at 5 of the 23 jobs.
      expect(sizes).toEqual([1, 1, 0, 1, 1])
      function page(after: string | null) {
        return store().read(listJobs(filter, 3, after, { scanMax: 5 }))
      }
    })
  })

  describe('counts by state', () => {
    const counted = async (filter: Partial<JobFilter>, max = 100) =>
      Object.fromEntries(
        (await store().read(countStates({ ...EVERY_JOB, ...filter }, max))).map(({ state, count, capped }) => [
          state,
          capped ? `${count}+` : count,
        ]),
      )

    test('obey the filter, and stop at the maximum', async () => {
      const scene = new Scene(store())
      const { userId } = scene
      for (let i = 0; i < 4; i++) await scene.submitted({ labels: { part: String(i % 2) } })
      await scene.submitted({ kind: 'other' })
      await scene.lease({ max: 1, startId: 's' })
      const none = { ASSIGNED: 0, ORPHANED: 0, SUCCEEDED: 0, FAILED: 0, TIMED_OUT: 0, CANCELED: 0 }
      expect(await counted({ userId })).toEqual({ ...none, PENDING: 4, RUNNING: 1 })
      expect(await counted({ userId, states: ['PENDING', 'FAILED'] })).toEqual({ PENDING: 4, FAILED: 0 })
      expect(await counted({ userId, label: { name: 'part', value: '1' } })).toEqual({
        ...none,
        PENDING: 2,
        RUNNING: 0,
      })
      expect(await counted({ userId, text: 'othe' })).toEqual({ ...none, PENDING: 1, RUNNING: 0 })
      expect(await counted({ userId, errorCode: 'X', states: ['PENDING'] })).toEqual({})
      expect(await counted({ userId, states: ['PENDING'] }, 3)).toEqual({ PENDING: '3+' })
    })
  })

  /** The names of the columns that a command was handed, as it was carried out. */
  async function columnsRead(reading: Command<unknown>): Promise<string[]> {
    const columns = new Set<string>()
    const hear = (_: Step, rows: readonly Row[]) => {
      for (const column of rows.flatMap((row) => Object.keys(row))) columns.add(column)
    }
    await store().write(overhear(reading, hear))
    return [...columns]
  }

  async function listed(filter: Partial<JobFilter>, limit: number, after: string | null) {
    const { rows, next } = await store().read(listJobs({ ...EVERY_JOB, ...filter }, limit, after))
    return { ids: rows.map(({ job_id }) => job_id), next }
  }

  async function ids(filter: Partial<JobFilter>): Promise<string[]> {
    return (await listed(filter, 100, null)).ids
  }
}
