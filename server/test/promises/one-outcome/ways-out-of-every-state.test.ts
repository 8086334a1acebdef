import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { ACTIVE_STATES, isFinal, type RunState } from '../../../src/core/run/run-state.ts'
import { createPromote } from '../../../src/leader/duties/promote.ts'
import { createReap } from '../../../src/leader/duties/reap.ts'
import { ClockWatch } from '../../../src/leader/election/clock-watch.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { type LeaderScene, leaderScene } from '../../../src/testing/nodes/leader-scene.ts'
import { seize, trusting } from '../../../src/testing/nodes/reaper.ts'
import { ENGINES } from '../../../src/testing/services/services.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Hazard 7: there are no dead ends. Whatever happened to a worker, time and the leader alone finish or free its job. */

const TIMES = { lease_ttl_seconds: 10, continuation_seconds: 20, timeout_seconds: 30 }
const HOUR_MS = 3_600_000

/** A run that its worker has abandoned. */
interface Left {
  state: RunState
  /** `fenced`: a revocation or a timeout removed the lease. */
  lease: 'none' | 'held' | 'lapsed' | 'fenced'
  confirming: boolean
  canceled: boolean
}

const LEFT: Left[] = ACTIVE_STATES.flatMap((state) =>
  (['none', 'held', 'lapsed', 'fenced'] as const).flatMap((lease) =>
    [false, true].flatMap((confirming) => [false, true].map((canceled) => ({ state, lease, confirming, canceled }))),
  ),
).filter(isReachable)

function isReachable({ state, lease, confirming, canceled }: Left): boolean {
  if (state === 'PENDING') return lease === 'none' && !confirming && !canceled
  if (state === 'ORPHANED') return lease !== 'held' && !confirming && !canceled
  if (state === 'ASSIGNED') return (lease === 'held' || lease === 'lapsed') && !confirming && !canceled
  return lease !== 'none' && (lease !== 'fenced' || confirming)
}

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(() => scene.clear())
  afterAll(() => scene.close())

  /** One hour of a leader, with a takeover in the middle. */
  async function anHour(): Promise<void> {
    const { world, store } = scene
    const clock = new ClockWatch(world)
    const promote = createPromote(scene)
    for (let term = 0; term < 2; term++) {
      const reap = createReap({ ...scene, clock, leading: trusting(await seize(store)) })
      for (let tick = 0; tick < 6; tick++) {
        await promote()
        while ((await reap()) === 0);
        await scene.pass(HOUR_MS / 12)
      }
    }
  }

  async function leave({ state, lease, confirming, canceled }: Left): Promise<string> {
    const id = await scene.submit({ ...TIMES, ...(state === 'PENDING' ? { delay_seconds: 60 } : {}) })
    if (state === 'PENDING') return id
    const call = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0 }
    const [leased] = await scene.services.runs.lease('gone', {
      ...call,
      ...(state === 'RUNNING' ? { startId: 's' } : {}),
    })
    expect(leased?.job_id).toBe(id)
    const changes = [
      `state = '${state}'`,
      ...(lease === 'lapsed' ? ['lease_expires_at = now_ms() - 1'] : []),
      ...(lease === 'fenced' ? ['lease_id = NULL'] : []),
      ...(confirming ? ["continuation_state = 'CONFIRMING'", 'continuation_check_deadline_at = now_ms() + 20000'] : []),
      ...(canceled ? ['cancel_requested_at = now_ms()'] : []),
    ]
    await sql(scene.store, `UPDATE ichido.runs SET ${changes.join()} WHERE job_id = $1`, id)
    return id
  }

  test.each(LEFT)('a way out of $state, lease $lease, confirming $confirming, canceled $canceled', async (left) => {
    const id = await leave(left)
    await anHour()
    const { state } = await scene.services.jobs.get(LOCAL_ADMIN, id)
    if (left.canceled) expect(state).toBe('CANCELED')
    if (isFinal(state)) return
    // If the job has not ended, any worker that polls gets it.
    const call = { queues: ['default'], kinds: [], max: 1, waitMs: 0 }
    expect(await scene.services.runs.lease('next', call)).toMatchObject([{ job_id: id }])
  })
})
