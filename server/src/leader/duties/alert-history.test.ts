import type { AlertRule, AlertShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { tryToLead } from '../../store/system/leadership.ts'
import { AlertHistory } from '../../testing/nodes/alert-history.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { ClockWatch } from '../election/clock-watch.ts'
import { type AlertChange, createAlert } from './alert.ts'
import { createReap } from './reap.ts'

/** S3's four alerts, with the seed's figures, on what really happened to jobs. */

const MINUTE_MS = 60_000

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let history: AlertHistory
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(async () => {
    await scene.clear()
    for (const table of ['alerts', 'minute_counts']) await sql(scene.store, `DELETE FROM ichido.${table}`)
    history = new AlertHistory(scene.services)
  })
  afterAll(() => scene.close())

  /** A node that leads from now on. */
  async function newLeader() {
    const told: AlertChange[] = []
    const term = await seize(scene.store)
    const tick = createAlert({ ...scene, loops: () => [], onAlert: (change) => void told.push(change) }, term)
    return {
      told,
      async tick() {
        await scene.services.minuteCounts.flush()
        await tick()
      },
    }
  }
  const alerts = async (rule: AlertRule): Promise<AlertShape[]> =>
    (await scene.services.alerts.list({ all: true, rule }, 200, null)).data

  interface Story {
    /** Just not enough. */
    fine(): Promise<void>
    more(): Promise<void>
    message: RegExp
  }
  const late = (ms: number) => () => scene.pass(ms)
  const STORIES: Record<string, () => Story> = {
    dead_letters: () => ({
      fine: () => history.deadLetters(10),
      more: () => history.deadLetters(1),
      message: /^Dead letters made within 60 min: 11, more than 10\. See why: ichido dead list --group$/,
    }),
    retry_failures: () => ({
      fine: () => history.retries(20, 1),
      more: () => history.retries(1, 1),
      message: /^2 of 21 \(9\.5 %\) retries failed within 60 min, more than 5 %\./,
    }),
    duplicate_keys: () => ({
      fine: () => history.submissions(10, 9, 1),
      more: () => history.submissions(0, 1),
      message: /^11 of 21 \(52\.4 %\) submissions with a key repeated a key within 60 min, more than 50 %\./,
    }),
    start_delay: () => ({
      fine: () => history.delays(5, late(290_000)),
      more: () => history.delays(5, late(330_000)),
      message: /^Runs started 310 s late on average within 60 min \(10 runs\), more than 300 s\./,
    }),
  }

  test.each(Object.keys(STORIES) as AlertRule[])('%s opens once and closes once, whoever leads', async (rule) => {
    const { fine, more, message } = STORIES[rule]?.() ?? expect.fail(rule)
    const first = await newLeader()
    await fine()
    await first.tick()
    expect(await alerts(rule), 'at the threshold').toEqual([])
    await more()
    await first.tick()
    await first.tick()
    const opened = await alerts(rule)
    expect(opened).toMatchObject([{ rule, closed_at: null, message: expect.stringMatching(message) }])

    const second = await newLeader()
    await Promise.all([first.tick(), second.tick()])
    await scene.pass(49 * MINUTE_MS)
    await second.tick()
    expect(await alerts(rule), 'within the hour').toEqual(opened)
    const third = await newLeader()
    await scene.pass(18 * MINUTE_MS)
    await Promise.all([first.tick(), second.tick(), third.tick()])
    await third.tick()
    const fourth = await newLeader()
    await fourth.tick()
    expect(await alerts(rule)).toMatchObject([{ alert_id: opened[0]?.alert_id, closed_at: expect.any(String) }])
    const told = [first, second, third, fourth].flatMap((leader) => leader.told).filter((one) => one.rule === rule)
    expect(
      told.map(({ open }) => open),
      'told once each',
    ).toEqual([true, false])
  })

  test('a dead letter that was retried since still counts', async () => {
    await history.deadLetters(11)
    const { deadLetters } = scene.services
    const { data } = await deadLetters.list(LOCAL_ADMIN, EVERY_DEAD_LETTER, 20, null)
    for (const { job_id } of data) await deadLetters.retry(LOCAL_ADMIN, job_id)
    expect(await sql(scene.store, 'SELECT * FROM ichido.dead_letters')).toEqual([])
    const leader = await newLeader()
    await leader.tick()
    expect(await alerts('dead_letters')).toHaveLength(1)
  })

  test('a retry of a lost worker has failed, and its job gets another run', async () => {
    const { services } = scene
    const input = { max_attempts: 3, backoff: { base_seconds: 0 }, lease_ttl_seconds: 1, continuation_seconds: 1 }
    await scene.submit(input)
    const lease = async () => {
      const take = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0, startId: 'p' }
      return (await services.runs.lease('w', take))[0]?.lease_id ?? expect.fail('nothing to lease')
    }
    const error = { code: 'BROKEN', message: 'it broke' }
    await services.runs.finish('w', await lease(), { verb: 'fail', error, retryable: true })
    await lease()
    const retried: string[] = []
    const meter = { ...services.deps.meter, retried: (by: string) => void retried.push(by) }
    const clock = new ClockWatch(scene.world)
    const reap = createReap({ ...services.deps, meter, clock, leading: trusting(await seize(scene.store)) })
    await reap()
    await scene.pass(2_000)
    await reap()
    await scene.pass(2_000)
    await reap()
    await services.minuteCounts.flush()
    const counts = await sql(
      scene.store,
      "SELECT name, count FROM ichido.minute_counts WHERE name LIKE 'retries%' ORDER BY name",
    )
    expect(counts).toEqual([
      { name: 'retries_ended', count: 1 },
      { name: 'retries_failed', count: 1 },
    ])
    expect(retried).toEqual(['policy'])
  })

  test('leader_changes opens after more than three changes in ten minutes', async () => {
    const changeLeaders = async (times: number) => {
      for (let i = 0; i < times; i++) {
        await sql(scene.store, 'UPDATE ichido.leadership SET holder = NULL')
        expect(await scene.store.write(tryToLead('node', 1_000))).toMatchObject({ held: true })
      }
    }
    const leader = async () => (await newLeader()).tick()
    await changeLeaders(3)
    await leader()
    expect(await alerts('leader_changes')).toEqual([])
    await changeLeaders(1)
    await leader()
    expect(await alerts('leader_changes')).toMatchObject([
      {
        closed_at: null,
        message: expect.stringMatching(/^Changes of the leader within 10 min: 4, more than 3\./),
      },
    ])
    await scene.pass(12 * MINUTE_MS)
    await leader()
    expect(await alerts('leader_changes')).toMatchObject([{ closed_at: expect.any(String) }])
  })
})
