import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { Scene } from '../../testing/store/scene.ts'
import { sql } from '../../testing/store/store.ts'
import { clearQuota, findQuota, findReservation, listReservations, setQuota } from '../limits/quotas.ts'
import { consumeSlot, type ReserveOutcome, releaseSlot, reserveSlot } from '../submission/reservations.ts'
import type { Given } from './given.ts'
import { jobCount } from './submit.ts'

const REFUSED = { kind: 'refused', refusal: { code: 'QUOTA_EXCEEDED' } }

export function quotaConformance({ store }: Given): void {
  describe('a quota', () => {
    test('does not exist until it is set', async () => {
      const scene = new Scene(store())
      const outcomes = await scene.submitAll(Array.from({ length: 50 }, () => scene.item()))
      expect(outcomes.every(({ kind }) => kind === 'created')).toBe(true)
      expect(await store().read(findQuota(scene.userId))).toMatchObject({
        maxConcurrent: null,
        costLimitMicros: null,
        custom: false,
        activeJobs: 50,
      })
    })

    test('admits jobs up to its limit, also inside one batch', async () => {
      const scene = await limited(3)
      expect(await scene.submit()).toMatchObject({ kind: 'created' })
      const outcomes = await scene.submitAll(Array.from({ length: 4 }, () => scene.item()))
      expect(outcomes.map(({ kind }) => kind)).toEqual(['created', 'created', 'refused', 'refused'])
      expect(outcomes[3]).toMatchObject({
        refusal: { code: 'QUOTA_EXCEEDED', message: 'Quota exceeded: Maximum 3 concurrent jobs allowed' },
      })
      expect(await jobCount(scene)).toBe(3)
    })

    test('warns from 80 %', async () => {
      const scene = await limited(5)
      const outcomes = await scene.submitAll(Array.from({ length: 5 }, () => scene.item()))
      const warnings = outcomes.map((outcome) => 'body' in outcome && JSON.parse(outcome.body).quotaWarnings)
      expect(warnings).toEqual([[], [], [], ['4 of 5 concurrent jobs in use'], ['5 of 5 concurrent jobs in use']])
    })

    test('counts a job in every state until it has ended', async () => {
      const scene = await limited(1)
      const jobId = await scene.submitted()
      expect(await scene.submit()).toMatchObject(REFUSED)
      const lease = await scene.leased()
      expect(await scene.submit()).toMatchObject(REFUSED)
      await sql(store(), `UPDATE ichido.runs SET state = 'ORPHANED' WHERE job_id = $1`, jobId)
      expect(await scene.submit()).toMatchObject(REFUSED)
      await sql(store(), `UPDATE ichido.runs SET state = 'ASSIGNED' WHERE job_id = $1`, jobId)
      await scene.start(lease)
      expect(await scene.submit()).toMatchObject(REFUSED)
      await scene.fail(lease)
      expect(await scene.state(jobId), 'its retry holds the slot').toBe('PENDING')
      expect(await scene.submit()).toMatchObject(REFUSED)
      await scene.age(20_000)
      await scene.finish(await scene.leased({ startId: 's' }))
      expect(await scene.submit()).toMatchObject({ kind: 'created' })
    })

    test.each(['canceled', 'dead'])('is free again when the job is %s', async (end) => {
      const scene = await limited(1)
      const jobId = await scene.submitted({ policy: { max_attempts: 1 } })
      if (end === 'canceled') await scene.cancel(jobId)
      else await scene.fail(await scene.leased({ startId: 's' }))
      expect(await scene.submit()).toMatchObject({ kind: 'created' })
    })

    test('of zero admits no job, but a replay needs no slot', async () => {
      const scene = new Scene(store())
      const jobId = await scene.submitted({ key: 'k' })
      await store().write(setQuota(scene.userId, { maxConcurrent: 0, costLimitMicros: null, period: 'day' }))
      expect(await scene.submit()).toMatchObject(REFUSED)
      expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId })
    })

    test('that is lowered below its use ends no job, and admits none until there is room', async () => {
      const scene = await limited(3)
      const jobs = [await scene.submitted(), await scene.submitted(), await scene.submitted()]
      await store().write(setQuota(scene.userId, { maxConcurrent: 1, costLimitMicros: null, period: 'month' }))
      for (const jobId of jobs) {
        expect(await scene.submit()).toMatchObject(REFUSED)
        await scene.cancel(jobId)
      }
      expect(await scene.submit()).toMatchObject({ kind: 'created' })
    })

    test('a refusal is not stored under the key', async () => {
      const scene = await limited(1)
      const jobId = await scene.submitted()
      expect(await scene.submit({ key: 'k' })).toMatchObject(REFUSED)
      await scene.cancel(jobId)
      expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'created' })
    })

    test('after its removal the default applies', async () => {
      const scene = await limited(7)
      expect(await store().read(findQuota(scene.userId))).toMatchObject({ custom: true, maxConcurrent: 7 })
      expect(await store().write(clearQuota(scene.userId))).toBe(true)
      expect(await store().write(clearQuota(scene.userId))).toBe(false)
      expect(await store().read(findQuota(scene.userId))).toMatchObject({ custom: false, maxConcurrent: null })
    })
  })

  describe('a reservation', () => {
    test('holds a slot until it is released', async () => {
      const scene = await limited(1)
      const { reservationId } = reserved(await scene.reserve())
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'active', jobId: null })
      expect(await scene.submit()).toMatchObject(REFUSED)
      expect(await scene.reserve()).toMatchObject({ kind: 'refused', code: 'QUOTA_EXCEEDED' })
      expect(await store().write(releaseSlot(reservationId, scene.userId))).toMatchObject({
        kind: 'done',
        reservation: { state: 'released' },
      })
      expect(await store().write(releaseSlot(reservationId, scene.userId))).toMatchObject({ kind: 'repeated' })
      expect(await scene.submit()).toMatchObject({ kind: 'created' })
    })

    test('frees its slot at its expiry without a timer', async () => {
      const scene = await limited(1)
      const { reservationId } = reserved(await scene.reserve(60_000))
      await scene.age(61_000)
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'expired' })
      expect(await store().read(findQuota(scene.userId))).toMatchObject({ activeReservations: 0 })
      const jobId = await scene.submitted()
      const notActive = { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE', message: expect.stringContaining('expired') }
      expect(await store().write(consumeSlot(reservationId, scene.userId, jobId))).toMatchObject(notActive)
      expect(await store().write(releaseSlot(reservationId, scene.userId))).toMatchObject(notActive)
    })

    test('that a count has seen expired stays expired when the clock is set back', async () => {
      const scene = await limited(1)
      const { reservationId } = reserved(await scene.reserve(60_000))
      await scene.age(61_000)
      const jobId = await scene.submitted()
      await scene.age(-30_000)
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'expired', jobId: null })
      expect(await scene.submit({ reservationId })).toMatchObject({
        kind: 'refused',
        refusal: { code: 'RESERVATION_NOT_ACTIVE' },
      })
      const notActive = { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE', message: expect.stringContaining('expired') }
      expect(await store().write(consumeSlot(reservationId, scene.userId, jobId))).toMatchObject(notActive)
      expect(await store().write(releaseSlot(reservationId, scene.userId))).toMatchObject(notActive)
      expect(await store().write(reserveSlot(reservationId, scene.userId, 60_000, true))).toMatchObject(notActive)
      expect(await store().read(findQuota(scene.userId))).toMatchObject({ activeJobs: 1, activeReservations: 0 })
      expect(await store().read(listReservations(scene.userId, true, 10, null))).toMatchObject({ rows: [] })
    })

    test('that no count has seen expired is active again when the clock is set back', async () => {
      const scene = await limited(1)
      const { reservationId } = reserved(await scene.reserve(60_000))
      await scene.age(61_000)
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'expired' })
      await scene.age(-30_000)
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'active' })
      expect(await scene.submit()).toMatchObject(REFUSED)
      expect(await scene.submit({ reservationId })).toMatchObject({ kind: 'created' })
    })

    test('of a submit becomes the slot of its job', async () => {
      const scene = await limited(1)
      const { reservationId } = reserved(await scene.reserve())
      const jobId = await scene.submitted({ reservationId })
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'consumed', jobId })
      expect(await scene.submit({ reservationId })).toMatchObject({
        kind: 'refused',
        refusal: { code: 'RESERVATION_NOT_ACTIVE' },
      })
      expect(await scene.submit()).toMatchObject(REFUSED)
      expect(await store().write(releaseSlot(reservationId, scene.userId))).toMatchObject({ kind: 'refused' })
    })

    test('of two submits of one batch serves the first', async () => {
      const scene = await limited(1)
      const { reservationId } = reserved(await scene.reserve())
      const outcomes = await scene.submitAll([scene.item({ reservationId }), scene.item({ reservationId })])
      expect(outcomes.map(({ kind }) => kind)).toEqual(['created', 'refused'])
    })

    test('of a submit that is a replay stays as it is', async () => {
      const scene = new Scene(store())
      await scene.submitted({ key: 'k' })
      const { reservationId } = reserved(await scene.reserve())
      expect(await scene.submit({ key: 'k', reservationId })).toMatchObject({ kind: 'replayed' })
      expect(await store().read(findReservation(reservationId))).toMatchObject({ state: 'active' })
    })

    test('is consumed once, by a job of its user, and a second request is a repeat', async () => {
      const scene = await limited(3)
      const { reservationId } = reserved(await scene.reserve())
      const [jobId, other] = [await scene.submitted(), await scene.submitted()]
      const consume = (job: string) => store().write(consumeSlot(reservationId, scene.userId, job))
      expect(await consume(jobId)).toMatchObject({ kind: 'done', reservation: { state: 'consumed', jobId } })
      expect(await consume(jobId)).toMatchObject({ kind: 'repeated', reservation: { jobId } })
      expect(await consume(other)).toMatchObject({ kind: 'refused', code: 'RESERVATION_NOT_ACTIVE' })
      expect(await store().read(findQuota(scene.userId))).toMatchObject({ activeJobs: 2, activeReservations: 0 })
    })

    test('or a job of another user is not found', async () => {
      const [scene, stranger] = [new Scene(store()), new Scene(store())]
      const { reservationId } = reserved(await scene.reserve())
      const [jobId, theirs] = [await scene.submitted(), await stranger.submitted()]
      const notFound = { kind: 'refused', code: 'NOT_FOUND' }
      expect(await store().write(consumeSlot(reservationId, scene.userId, theirs))).toMatchObject(notFound)
      expect(await store().write(consumeSlot(reservationId, scene.userId, v7()))).toMatchObject(notFound)
      expect(await store().write(consumeSlot(reservationId, stranger.userId, theirs))).toMatchObject(notFound)
      expect(await store().write(releaseSlot(reservationId, stranger.userId))).toMatchObject(notFound)
      expect(await store().write(releaseSlot(v7(), scene.userId))).toMatchObject(notFound)
      expect(await stranger.submit({ reservationId })).toMatchObject({
        refusal: { code: 'RESERVATION_NOT_ACTIVE' },
      })
      expect(await store().write(consumeSlot(reservationId, scene.userId, jobId))).toMatchObject({ kind: 'done' })
    })

    test('is stored as consumed together with a job that asks for it', async () => {
      const scene = await limited(1)
      const consumedReservationId = v7()
      const jobId = await scene.submitted({ consumedReservationId })
      const found = await store().read(findReservation(consumedReservationId))
      expect(found).toMatchObject({ state: 'consumed', jobId })
      expect(await store().read(findQuota(scene.userId))).toMatchObject({ activeJobs: 1, activeReservations: 0 })
    })

    test('is made once by a command that runs again after an uncertain commit', async () => {
      const scene = await limited(1)
      const id = v7()
      const first = reserved(await scene.reserve(60_000, id))
      const command = reserveSlot(id, scene.userId, 60_000)
      const again = await store().write({ name: command.name, work: () => command.work(true) })
      expect(reserved(again)).toEqual(first)
    })

    test('is listed newest first, in pages, active ones or all', async () => {
      const scene = new Scene(store())
      const ids: string[] = []
      for (let i = 0; i < 5; i++) ids.push(reserved(await scene.reserve()).reservationId)
      await store().write(releaseSlot(ids[3] ?? '', scene.userId))
      const list = async (activeOnly: boolean, after: string | null) => {
        const { rows, next } = await store().read(listReservations(scene.userId, activeOnly, 3, after))
        return [rows.map(({ reservationId }) => ids.indexOf(reservationId)), next]
      }
      expect(await list(false, null)).toEqual([[4, 3, 2], ids[2]])
      expect(await list(false, ids[2] ?? null)).toEqual([[1, 0], null])
      expect(await list(true, null)).toEqual([[4, 2, 1], ids[1]])
      expect((await store().read(listReservations(null, true, 1_000, null))).rows.length).toBeGreaterThan(3)
    })
  })

  async function limited(maxConcurrent: number): Promise<Scene> {
    const scene = new Scene(store())
    await store().write(setQuota(scene.userId, { maxConcurrent, costLimitMicros: null, period: 'month' }))
    return scene
  }
}

function reserved(outcome: ReserveOutcome) {
  if (outcome.kind === 'refused') throw new Error(outcome.message)
  return outcome.reservation
}
