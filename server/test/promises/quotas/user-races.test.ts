import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { body } from '../../../src/store/conformance/submit.ts'
import { findReservation, setQuota } from '../../../src/store/limits/quotas.ts'
import { command } from '../../../src/store/port.ts'
import { queryText } from '../../../src/store/statement.ts'
import { extendKeyTo, findKeys } from '../../../src/store/submission/keys.ts'
import { consumeSlot, releaseSlot } from '../../../src/store/submission/reservations.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { readClock, renewTerm } from '../../../src/store/system/leadership.ts'
import { removeReservations } from '../../../src/store/system/retention.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { removeKeys } from '../../../src/testing/store/retention.ts'
import { KEY_TTL_MS, only, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { sql, until } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL run two commands on one reservation, key or limit. The result is that of one of the two orders. */

const nodes = twoNodes()
const newScene = () => new Scene(nodes.a())

async function limit(scene: Scene, maxConcurrent: number | null): Promise<void> {
  await scene.store.write(setQuota(scene.userId, { maxConcurrent, costLimitMicros: null, period: 'day' }))
}

/** Counting locks a user with a limit. Without a limit, submits run side by side. */
describe.each([null, 9])('a reservation of a user with limit %s', (maxConcurrent) => {
  async function reserved() {
    const scene = newScene()
    await limit(scene, maxConcurrent)
    const reservationId = v7()
    await scene.reserve(60_000, reservationId)
    return { scene, reservationId }
  }

  test('a reservation is consumed or released, never both', async () => {
    const { scene, reservationId } = await reserved()
    const jobId = await scene.submitted()
    const consume = consumeSlot(reservationId, scene.userId, jobId)
    const release = releaseSlot(reservationId, scene.userId)
    expect(await nodes.meet(consume, release)).toMatchObject([{ kind: 'done' }, { code: 'RESERVATION_NOT_ACTIVE' }])
    const other = await reserved()
    const theirs = await other.scene.submitted()
    expect(
      await nodes.meet(
        releaseSlot(other.reservationId, other.scene.userId),
        consumeSlot(other.reservationId, other.scene.userId, theirs),
      ),
    ).toMatchObject([{ kind: 'done' }, { code: 'RESERVATION_NOT_ACTIVE' }])
  })

  test('a reservation serves one job: by consuming it, or by a submit that names it', async () => {
    const { scene, reservationId } = await reserved()
    const jobId = await scene.submitted()
    const submit = submitJobs([scene.item({ reservationId })], renderForTest)
    expect(await nodes.meet(consumeSlot(reservationId, scene.userId, jobId), submit)).toMatchObject([
      { kind: 'done' },
      [{ kind: 'refused', refusal: { code: 'RESERVATION_NOT_ACTIVE' } }],
    ])
    const other = await reserved()
    const theirs = await other.scene.submitted()
    const bring = submitJobs([other.scene.item({ reservationId: other.reservationId })], renderForTest)
    expect(await nodes.meet(bring, consumeSlot(other.reservationId, other.scene.userId, theirs))).toMatchObject([
      [{ kind: 'created' }],
      { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE' },
    ])
  })
})

describe('the default limit is set while a submit of an unlimited user waits for its lock', () => {
  test.each([
    ['by one statement', (submit: ReturnType<typeof submitJobs>) => submit],
    ['step by step', (submit: ReturnType<typeof submitJobs>) => ({ ...submit, fastPath: undefined })],
  ])('the submit respects the new limit: %s', async (_, as) => {
    const scene = newScene()
    await scene.submitted()
    const lockUser = 'SELECT 1 FROM ichido.quotas WHERE user_id = $1 FOR UPDATE'
    const held = await nodes.gate()
    const one = nodes.a().write(held.hold(command('hold_user', () => queryText(lockUser, scene.userId))))
    await held.reached()
    const other = nodes.b().write(as(submitJobs([scene.item()], renderForTest)))
    await held.someoneWaits()
    try {
      await nodes.a().write(setQuota('*', { maxConcurrent: 1, costLimitMicros: null, period: 'day' }))
      await held.open()
      await one
      expect(await other).toMatchObject([{ kind: 'refused', refusal: { code: 'QUOTA_EXCEEDED' } }])
    } finally {
      await nodes.b().write(setQuota('*', { maxConcurrent: null, costLimitMicros: null, period: 'month' }))
    }
  })
})

describe('an expired reservation is ignored by a submit', () => {
  async function expired() {
    const scene = newScene()
    await limit(scene, 1)
    const reservationId = v7()
    await scene.reserve(60_000, reservationId)
    await scene.age(61_000)
    const remove = removeReservations(await seize(nodes.a()), 0, 1_000)
    const found = () => nodes.a().read(findReservation(reservationId))
    return { scene, reservationId, remove, found, submit: submitJobs([scene.item()], renderForTest) }
  }

  test('retention removes it, or skips it while the submit runs', async () => {
    const { remove, submit, found } = await expired()
    expect((await nodes.meet(submit, remove))[0]).toMatchObject([{ kind: 'created' }])
    expect(await found()).toMatchObject({ state: 'expired' })
    await nodes.a().write(remove)
    expect(await found()).toBeNull()
    const other = await expired()
    expect((await nodes.meet(other.remove, other.submit))[1]).toMatchObject([{ kind: 'created' }])
    expect(await other.found()).toBeNull()
  })

  test('releasing it is refused in either order', async () => {
    const { scene, submit, reservationId } = await expired()
    const late = { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE' }
    const release = releaseSlot(reservationId, scene.userId)
    expect(await nodes.meet(submit, release)).toMatchObject([[{ kind: 'created' }], late])
    const other = await expired()
    const theirs = releaseSlot(other.reservationId, other.scene.userId)
    expect(await nodes.meet(theirs, other.submit)).toMatchObject([late, [{ kind: 'created' }]])
  })
})

describe.each([null, 9])('an expired key of an ended job, of a user with limit %s', (maxConcurrent) => {
  async function expired() {
    const scene = newScene()
    await limit(scene, maxConcurrent)
    const jobId = await scene.submitted({ key: 'k' })
    await scene.cancel(jobId)
    await scene.age(KEY_TTL_MS + 1)
    const key = only(await nodes.a().read(findKeys('k', scene.userId)))
    return { scene, key, extend: extendKeyTo(key, KEY_TTL_MS), expire: removeKeys(1_000) }
  }
  const keyOf = (scene: Scene) => nodes.a().read(findKeys('k', scene.userId))

  test('a key that is extended before its removal stays', async () => {
    const { scene, extend, expire } = await expired()
    expect(await nodes.meet(extend, expire)).toEqual([expect.any(Number), 0])
    expect(await keyOf(scene)).toHaveLength(1)
  })

  test('extending a removed key returns null', async () => {
    const { scene, extend, expire } = await expired()
    expect(await nodes.meet(expire, extend)).toEqual([1, null])
    expect(await keyOf(scene)).toEqual([])
  })

  test('a submit after the extension replays the first job', async () => {
    const { scene, key, extend } = await expired()
    const submit = submitJobs([scene.item({ key: 'k' })], renderForTest)
    expect(await nodes.meet(extend, submit)).toMatchObject([
      expect.any(Number),
      [{ kind: 'replayed', jobId: key.jobId }],
    ])
  })

  test('an extension after a submit extends the new key', async () => {
    const { scene, extend } = await expired()
    const item = scene.item({ key: { key: 'k', ttlMs: 1 } })
    const [, expiresAtMs] = await nodes.meet(submitJobs([item], renderForTest), extend)
    expect(await keyOf(scene)).toMatchObject([{ jobId: item.jobId, expiresAtMs }])
  })

  test('two submits with the key create one new job', async () => {
    const { scene } = await expired()
    const submit = () => submitJobs([scene.item({ key: 'k' })], renderForTest)
    const [[first], [second]] = await nodes.meet(submit(), submit())
    expect([first?.kind, second?.kind]).toEqual(['created', 'replayed'])
    expect(second).toMatchObject({ body: body(first) })
    expect(await keyOf(scene)).toHaveLength(1)
  })

  test('a submit during the removal creates a new job', async () => {
    const { scene, expire } = await expired()
    const item = scene.item({ key: 'k' })
    expect(await nodes.meet(expire, submitJobs([item], renderForTest))).toMatchObject([1, [{ kind: 'created' }]])
    expect(await keyOf(scene)).toMatchObject([{ jobId: item.jobId }])
  })
})

describe('a limit is set while a submit runs', () => {
  const five = { maxConcurrent: 1, costLimitMicros: null, period: 'day' } as const

  test('a limit waits for an earlier submit and counts its job', async () => {
    const scene = newScene()
    await scene.cancel(await scene.submitted())
    const submit = submitJobs([scene.item()], renderForTest)
    expect(await nodes.meet(submit, setQuota(scene.userId, five))).toMatchObject([[{ kind: 'created' }], undefined])
    expect(await scene.submit()).toMatchObject({ kind: 'refused' })
  })

  test('a later submit counts against the limit', async () => {
    const scene = newScene()
    await scene.submitted()
    const submit = submitJobs([scene.item()], renderForTest)
    expect(await nodes.meet(setQuota(scene.userId, five), submit)).toMatchObject([undefined, [{ kind: 'refused' }]])
  })
})

test("a job that ends during a submit's wait frees its slot, without overlap in time", async () => {
  const scene = newScene()
  await limit(scene, 1)
  const lease = await scene.running()
  const item = scene.item()
  const held = await nodes.gate()
  const submitting = nodes.b().write(held.hold(submitJobs([item], renderForTest), 'lock_users'))
  await held.reached()
  const lockedByMs = await nodes.a().read(readClock())
  await until('a later instant', async () => (await nodes.a().read(readClock())) > lockedByMs)
  await scene.finish(lease)
  await held.open()
  expect(await submitting).toMatchObject([{ kind: 'created' }])
  const [ended] = await scene.runs(lease.jobId)
  const [begun] = await sql(nodes.a(), 'SELECT created_at FROM ichido.jobs WHERE id = $1', item.jobId)
  expect(Number(begun?.created_at)).toBeGreaterThanOrEqual(Number(ended?.finished_at))
})

test('hazard 9: many waits for one user delay neither other heartbeats nor the leader', async () => {
  const other = newScene()
  const lease = await other.running()
  const term = await seize(nodes.a())
  const scene = newScene()
  await limit(scene, 9)
  const held = await nodes.gate()
  const holder = nodes.b().write(held.hold(submitJobs([scene.item()], renderForTest)))
  await held.reached()
  const waiting = Array.from({ length: 8 }, () => scene.reserve(60_000, v7()))
  await held.someoneWaits()
  const beganMs = performance.now()
  await other.heartbeat(lease)
  expect(await nodes.a().write(renewTerm(term, 60_000))).toMatchObject({ held: true })
  // Without their own connections, they would wait until the first of the others times out, after 5 s.
  expect(performance.now() - beganMs).toBeLessThan(3_000)
  await held.open()
  await holder
  await Promise.all(waiting)
})
