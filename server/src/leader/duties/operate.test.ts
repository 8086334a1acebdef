import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { EVERY_JOB, type JobFilter } from '../../store/jobs/list-jobs.ts'
import { setQuota } from '../../store/limits/quotas.ts'
import {
  abortOperation,
  beginOperation,
  countChoice,
  type NewOperation,
  type Operation,
} from '../../store/operations/operations.ts'
import { stepOperation } from '../../store/operations/step.ts'
import type { Command } from '../../store/port.ts'
import type { Term } from '../../store/system/term.ts'
import { failAll, lead, makeDead, progress, redriver, timesRetried } from '../../testing/store/dead-letters.ts'
import { Scene } from '../../testing/store/scene.ts'
import { eachEngine, sql, until } from '../../testing/store/store.ts'

const ACTIVE = ['PENDING', 'ORPHANED', 'ASSIGNED', 'RUNNING']
const FAILED = ['FAILED', 'TIMED_OUT', 'CANCELED']

eachEngine(({ store }) => {
  const write = <T>(command: Command<T>) => store().write(command)

  interface Asked extends Partial<Pick<NewOperation, 'jobIds' | 'perSecond'>> {
    filter?: Partial<JobFilter>
  }

  function choiceOf(scene: Scene, action: 'cancel' | 'retry', { filter = {}, jobIds = null }: Asked) {
    const states = action === 'cancel' ? ACTIVE : FAILED
    return { action, jobIds, filter: { ...EVERY_JOB, userId: scene.userId, states, ...filter } }
  }

  function begin(scene: Scene, action: 'cancel' | 'retry', asked: Asked = {}): Promise<Operation> {
    const ids = { operationId: v7(), auditId: v7(), actor: 'tester', perSecond: asked.perSecond ?? null }
    return write(beginOperation({ ...choiceOf(scene, action, asked), ...ids }))
  }

  async function counted(scene: Scene, action: 'cancel' | 'retry', asked: Asked = {}) {
    const rows = await store().read(countChoice(choiceOf(scene, action, asked), 1_000))
    return Object.fromEntries(rows.flatMap(({ state, count }) => (count === 0 ? [] : [[state, count]])))
  }

  function stepOf({ operationId, version }: Operation, term: Term, max = 2) {
    const nextRunIds = Array.from({ length: max }, () => v7())
    return stepOperation(term, { operationId, version, nextRunIds, auditId: v7(), leased: [] })
  }

  /** Ticks until the operation has ended. */
  async function drive(begun: Operation): Promise<Operation> {
    const tick = redriver(store(), await lead(store()))
    return until('the operation', async () => {
      await tick()
      const now = await progress(store(), begun)
      return now.state !== 'running' && now
    })
  }

  async function submitted(scene: Scene, count: number): Promise<string[]> {
    const ids: string[] = []
    for (let i = 0; i < count; i++) ids.push(await scene.submitted())
    return ids
  }

  const audit = (subject: string) =>
    sql(store(), 'SELECT action, after FROM ichido.audit WHERE subject = $1 ORDER BY id', subject)

  describe('a cancel of many jobs', () => {
    test('does what the dry run says: waiting jobs end, and running jobs are asked to stop', async () => {
      const scene = new Scene(store())
      const done = await scene.running()
      await scene.finish(done)
      const running = await scene.running()
      const assigned = await scene.submitted()
      await scene.leased()
      const waiting = await submitted(scene, 3)
      const other = await scene.submitted({ kind: 'other' })
      const filter = { kind: 'work' }
      expect(await counted(scene, 'cancel', { filter })).toEqual({ PENDING: 3, ASSIGNED: 1, RUNNING: 1 })
      const begun = await begin(scene, 'cancel', { filter })
      expect(begun).toMatchObject({ state: 'running', action: 'cancel', matched: 5, done: 0 })
      const late = await scene.submitted()
      await sql(store(), 'UPDATE ichido.jobs SET created_at = created_at + 1000 WHERE id = $1', late)
      expect(await drive(begun)).toMatchObject({ state: 'done', matched: 5, done: 5, skipped: 0, refused: 0 })
      for (const jobId of [...waiting, assigned]) expect(await scene.state(jobId)).toBe('CANCELED')
      expect(await scene.run(running.runId)).toMatchObject({
        state: 'RUNNING',
        cancel_requested_at: expect.any(Number),
      })
      expect([await scene.state(other), await scene.state(late)]).toEqual(['PENDING', 'PENDING'])
      expect(await scene.state(done.jobId)).toBe('SUCCEEDED')
      expect((await scene.events(assigned)).at(-1)).toMatchObject({ state: 'CANCELED' })
      const entries = await audit(begun.operationId)
      expect(entries.map(({ action }) => action)).toEqual(['cancel.begin', 'cancel.done'])
      expect(JSON.parse(String(entries[1]?.after))).toEqual({ matched: 5, done: 5, waiting: 0, skipped: 0, refused: 0 })
    })

    test('of a list takes the jobs of its user that have not ended', async () => {
      const [scene, other] = [new Scene(store()), new Scene(store())]
      const [one = '', two = '', three = ''] = await submitted(scene, 3)
      await scene.cancel(two)
      const foreign = await other.submitted()
      const jobIds = [one, two, one, foreign, v7()]
      expect(await counted(scene, 'cancel', { jobIds })).toEqual({ PENDING: 1 })
      const begun = await begin(scene, 'cancel', { jobIds })
      expect(begun).toMatchObject({ matched: 1, jobIds: [one], jobFilter: null })
      expect(await drive(begun)).toMatchObject({ state: 'done', done: 1 })
      expect([await scene.state(three), await other.state(foreign)]).toEqual(['PENDING', 'PENDING'])
    })

    test('counts jobs that have changed meanwhile as skipped', async () => {
      const scene = new Scene(store())
      const [one = '', two = ''] = await submitted(scene, 3)
      const filter = { states: ['PENDING'] }
      const begun = await begin(scene, 'cancel', { filter })
      await scene.cancel(two)
      const { jobId } = await scene.leased({ startId: 's' })
      expect(jobId).toBe(one)
      expect(await drive(begun)).toMatchObject({ state: 'done', matched: 3, done: 1, skipped: 2 })
      expect(await scene.runs(one)).toMatchObject([{ state: 'RUNNING', cancel_requested_at: null }])
    })

    test('counts first, in steps, if there are too many for one look', async () => {
      const scene = new Scene(store())
      await submitted(scene, 5)
      const begun = await begin(scene, 'cancel')
      await sql(store(), 'UPDATE ichido.operations SET prepared = false, matched = 1 WHERE id = $1', begun.operationId)
      await write(stepOf(begun, await lead(store())))
      expect(await progress(store(), begun)).toMatchObject({ matched: 5, done: 0, prepared: true })
      expect(await drive(begun)).toMatchObject({ matched: 5, done: 5 })
    })

    test('gives the cost of jobs that never started back', async () => {
      const scene = new Scene(store())
      await scene.submitted({ estimatedCostMicros: 5_000 })
      await drive(await begin(scene, 'cancel'))
      const spent = 'SELECT sum(spent_micros) AS spent FROM ichido.cost_counters WHERE user_id = $1'
      expect(Number((await sql(store(), spent, scene.userId))[0]?.spent)).toBe(0)
    })
  })

  describe('a retry of many jobs', () => {
    test('does what the dry run says, each job once, even if it fails again meanwhile', async () => {
      const scene = new Scene(store())
      const dead = await makeDead(scene, 5)
      const canceled = await scene.submitted()
      await scene.cancel(canceled)
      expect(await counted(scene, 'retry')).toEqual({ FAILED: 5, CANCELED: 1 })
      expect(await counted(scene, 'retry', { filter: { errorCode: 'BROKEN' } })).toEqual({ FAILED: 5 })
      const begun = await begin(scene, 'retry', { perSecond: 400 })
      const term = await lead(store())
      let now = begun
      while (now.state === 'running') {
        await write(stepOf(now, term))
        // The retried jobs die again at once.
        await failAll(scene)
        now = await progress(store(), begun)
      }
      expect(now).toMatchObject({ matched: 6, done: 6, skipped: 0, refused: 0 })
      const times = await timesRetried(scene)
      expect([...times.keys()].sort()).toEqual([...dead, canceled].sort())
      expect(new Set(times.values())).toEqual(new Set([1]))
    })

    test('refuses jobs that find the quota full', async () => {
      const scene = new Scene(store())
      await makeDead(scene, 4)
      await write(setQuota(scene.userId, { maxConcurrent: 3, costLimitMicros: null, period: 'day' }))
      expect(await drive(await begin(scene, 'retry'))).toMatchObject({ matched: 4, done: 3, refused: 1, skipped: 0 })
    })
  })

  describe('an operation', () => {
    test('that is aborted stops, keeps its work, and is recorded', async () => {
      const scene = new Scene(store())
      const ids = await submitted(scene, 5)
      const begun = await begin(scene, 'cancel')
      const term = await lead(store())
      await write(stepOf(begun, term))
      const aborted = await write(abortOperation(begun.operationId, 'somebody', v7()))
      expect(aborted).toMatchObject({ state: 'aborted', done: 2, matched: 5, skipped: 0 })
      expect(await write(stepOf(aborted ?? begun, term))).toMatchObject({ canceled: [] })
      const states = await Promise.all(ids.map((id) => scene.state(id)))
      expect(states).toEqual(['CANCELED', 'CANCELED', 'PENDING', 'PENDING', 'PENDING'])
      expect((await audit(begun.operationId)).map(({ action }) => action)).toEqual(['cancel.begin', 'cancel.abort'])
    })

    test('keeps to its pace', async () => {
      const scene = new Scene(store())
      await submitted(scene, 6)
      const begun = await begin(scene, 'cancel', { perSecond: 8 })
      const term = await lead(store())
      await write(stepOf(begun, term, 100))
      const first = await progress(store(), begun)
      // A quarter of a second's jobs, and the pause that they take.
      expect(first.done).toBe(2)
      expect(first.nextAtMs - begun.beganAtMs).toBeGreaterThanOrEqual(250)
    })

    test('continues after a crash, under another leader, where it was', async () => {
      const scene = new Scene(store())
      await makeDead(scene, 7)
      const begun = await begin(scene, 'retry')
      const term = await lead(store())
      await write(stepOf(begun, term))
      const some = await progress(store(), begun)
      await expect(crashing(stepOf(some, term))).rejects.toThrow('crash')
      expect(await progress(store(), begun)).toEqual(some)
      const next = await lead(store())
      expect(await write(stepOf(some, term))).toMatchObject({ retried: [] })
      expect((await write(stepOf(some, next))).retried).toHaveLength(2)
      expect(await drive(begun)).toMatchObject({ matched: 7, done: 7 })
      expect([...(await timesRetried(scene)).values()]).toEqual(Array(7).fill(1))
    })

    test('is not repeated by a step with an old version', async () => {
      const scene = new Scene(store())
      await submitted(scene, 4)
      const begun = await begin(scene, 'cancel')
      const term = await lead(store())
      const step = stepOf(begun, term)
      expect((await write(step)).canceled).toHaveLength(2)
      expect((await write(step)).canceled).toEqual([])
      expect(await progress(store(), begun)).toMatchObject({ done: 2 })
    })
  })

  function crashing<T>(command: Command<T>): Promise<T> {
    return write({
      name: command.name,
      *work(again) {
        yield* command.work(again)
        throw new Error('crash')
      },
    })
  }
})
