import pg from 'pg'
import { v7 } from 'uuid'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { command } from '../../../src/store/port.ts'
import { expireBatch, type PendingExpiry, type ReviewItem, reviewRuns } from '../../../src/store/runs/reap-runs.ts'
import { query, statement } from '../../../src/store/statement.ts'
import { resignTerm, tryToLead } from '../../../src/store/system/leadership.ts'
import { LED, TERM, type Term } from '../../../src/store/system/term.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine, sql, unique } from '../../../src/testing/store/store.ts'

/** Hazard 15: a former leader that waited or was paused must not write after another node leads. */

const REVIEW: Omit<ReviewItem, 'nowMs'> = {
  evenMs: Number.MAX_SAFE_INTEGER,
  batchMax: 100,
  waitingMax: 100,
  reassignAfterMs: 10_000,
}
const review = (term: Term) => reviewRuns(term, { nowMs: Date.now(), ...REVIEW })
const expire = (term: Term, waiting: readonly PendingExpiry[]) =>
  expireBatch(
    term,
    waiting.map((one) => ({ ...one, nextRunId: v7(), random: 0 })),
  )

eachEngine(({ store }) => {
  test('no write of a leader whose term is over changes anything', async () => {
    const scene = new Scene(store())
    const old = await seize(store())
    const confirmed = await scene.running()
    await scene.age(61_000)
    const { waiting } = await store().write(review(old))
    expect(waiting).toMatchObject([{ jobId: confirmed.jobId }])
    // The runs give each write something to do: orphan, give up, confirm, halt and end.
    await scene.submitted()
    await scene.leased()
    await scene.submitted()
    const often = await scene.leased()
    await scene.running()
    await scene.running({ policy: { timeout_seconds: 1, lease_ttl_seconds: 3600 } })
    await sql(store(), "UPDATE ichido.runs SET state = 'ORPHANED', attempt = 1000 WHERE id = $1", often.runId)
    await scene.age(61_000)

    const everything = () =>
      Promise.all(
        ['ready', 'held', 'ended', 'events', 'dead_letters', 'leadership'].map((table) =>
          sql(store(), `SELECT * FROM ichido.${table} ORDER BY 1, 2`),
        ),
      )
    const current = await seize(store())
    for (const term of [old, { ...old, epoch: current.epoch }, { ...current, epoch: old.epoch }]) {
      const before = await everything()
      expect(await store().write(review(term))).toMatchObject({ queues: [], ended: [], full: false })
      expect(await store().write(expire(term, waiting))).toEqual([])
      expect(await store().write(resignTerm(term))).toBe(false)
      expect(await everything()).toEqual(before)
    }

    // With the current term all of this is done.
    expect(await store().write(review(current))).toMatchObject({
      queues: [scene.queue],
      ended: [{ jobId: often.jobId, state: 'FAILED' }],
      waiting: [{}, {}, {}],
    })
    expect(await store().write(expire(current, waiting))).toMatchObject([
      { jobId: confirmed.jobId, state: 'TIMED_OUT' },
    ])
  })
})

describe('forced interleavings on PostgreSQL', () => {
  const nodes = twoNodes()
  let client: pg.Client
  beforeAll(async () => {
    client = new pg.Client(nodes.url())
    await client.connect()
  })
  afterAll(() => client.end())

  const expired = () => sql(nodes.a(), 'UPDATE ichido.leadership SET expires_at = 0')
  const takeover = () => nodes.b().write(tryToLead(unique('node'), 60_000))
  const someoneWaits = async () => {
    const gate = await nodes.gate()
    await gate.someoneWaits()
    await gate.open()
  }

  /** A leader's write to this run, as a statement that waits for the row lock instead of skipping the row. */
  const fenced = statement('test_fenced', {
    params: { ...TERM, job_id: 'text' },
    row: { job_id: 'text' },
    sql: `${LED}, c AS MATERIALIZED (
      SELECT r.job_id FROM l CROSS JOIN ichido.held r WHERE r.job_id = $job_id FOR UPDATE OF r)
    UPDATE ichido.held r SET priority = 77 FROM c WHERE r.job_id = c.job_id RETURNING r.job_id`,
  })
  const obvious = statement('test_obvious', {
    params: { ...TERM, job_id: 'text' },
    row: { job_id: 'text' },
    sql: `UPDATE ichido.held SET priority = 77 WHERE job_id = $job_id
    AND EXISTS (SELECT 1 FROM ichido.leadership WHERE epoch = $epoch AND holder = $holder) RETURNING job_id`,
  })

  /** The write waits for a row lock while another node tries to lead. Returns which of the two committed first. */
  async function interleave(statement: typeof fenced): Promise<{ wrote: boolean; ledBefore: boolean }> {
    const scene = new Scene(nodes.a())
    const { jobId } = await scene.running()
    const term = await seize(nodes.a())
    await expired()
    await client.query('BEGIN')
    await client.query('SELECT 1 FROM ichido.held WHERE job_id = $1 FOR UPDATE', [jobId])
    const order: string[] = []
    const writing = nodes.a().write(command('test', () => query(statement, { ...term, job_id: jobId })))
    const wrote = writing.then((rows) => rows.length > 0 && order.push('write') > 0)
    await someoneWaits()
    const taking = takeover().then(({ held }) => held && order.push('takeover') > 0)
    // A takeover that does not wait for the write commits before it.
    await Promise.race([taking, twoWait()])
    await client.query('COMMIT')
    return { wrote: await wrote, ledBefore: (await taking) && order[0] === 'takeover' }
  }
  async function twoWait(): Promise<void> {
    for (;;) {
      const { rows } = await client.query(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
      )
      if (rows.length >= 2) return
    }
  }

  test('without the fence, a former leader writes after another node leads', async () => {
    expect(await interleave(obvious)).toEqual({ wrote: true, ledBefore: true })
  })

  test('a fenced write that waits delays the takeover until it has committed', async () => {
    expect(await interleave(fenced)).toEqual({ wrote: true, ledBefore: false })
  })

  test('a write that races with a takeover waits for it and changes nothing', async () => {
    const scene = new Scene(nodes.a())
    const { runId } = await scene.running()
    await scene.age(61_000)
    const term = await seize(nodes.a())
    await expired()
    const [standing, reviewed] = await nodes.meet(tryToLead(unique('node'), 60_000), review(term))
    expect(standing).toMatchObject({ held: true, epoch: term.epoch + 1 })
    expect(reviewed).toMatchObject({ queues: [], ended: [] })
    expect(await scene.run(runId)).toMatchObject({ continuation_state: 'NONE' })
  })

  test('a review that has begun commits before another node leads', async () => {
    const scene = new Scene(nodes.a())
    const { runId } = await scene.running()
    await scene.age(61_000)
    const term = await seize(nodes.a())
    await expired()
    const [, standing] = await nodes.meet(review(term), tryToLead(unique('node'), 60_000))
    expect(standing).toMatchObject({ held: true })
    expect(await scene.run(runId)).toMatchObject({ continuation_state: 'CONFIRMING' })
  })

  test('a leader that is stopped during a write is disconnected and replaced within 10 s', async () => {
    const scene = new Scene(nodes.a())
    const { jobId, runId } = await scene.running()
    const term = await seize(nodes.a())
    const paused = new pg.Client(nodes.url())
    const broken = new Promise<unknown>((resolve) => paused.on('error', resolve))
    await paused.connect()
    await paused.query('BEGIN')
    expect((await paused.query(fenced.postgres, [term.epoch, term.holder, jobId])).rowCount).toBe(1)
    await expired()
    const beganMs = performance.now()
    let standing = await takeover()
    while (!standing.held) standing = await takeover()
    expect(performance.now() - beganMs).toBeLessThan(10_000)
    expect(String(await broken)).toContain('idle-in-transaction timeout')
    expect(await scene.run(runId)).not.toMatchObject({ priority: 77 })
  })
})
