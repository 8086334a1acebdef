import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import type { Leased } from '../../../src/store/leasing/lease-runs.ts'
import { readClock } from '../../../src/store/system/leadership.ts'
import { NodeProcess } from '../../../src/testing/nodes/node-process.ts'
import { integer } from '../../../src/testing/store/rows.ts'
import { only, Scene } from '../../../src/testing/store/scene.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/**
 * Real processes on PostgreSQL: whatever happens to the leader, another node leads soon, and nothing is done twice.
 * Each test continues from the one before, so that one run lives through all of them.
 */

const TIMES = {
  lease_ttl_seconds: 1,
  backoff: { baseSeconds: 3600, capSeconds: 3600, jitter: 0 },
}
const BEAT_MS = 500
const LONG_MS = 4_000
/** A test may learn this much later of a new leader. */
const LATE_MS = 3_000

describe('the leader', () => {
  let database: FreshDatabase
  let store: PostgresStore
  let client: pg.Client
  let leader: NodeProcess
  let epoch = 2
  const started: NodeProcess[] = []
  /** A run that lasts for the whole file, and the heartbeats of its worker. */
  let lasting: { scene: Scene; lease: Leased; beating: NodeJS.Timeout; refused: string[] }

  beforeAll(async () => {
    database = await freshDatabase()
    store = await openNode(database.url)
    client = new pg.Client(database.url)
    await client.connect()
    leader = await start()
    expect(leader.standing).toEqual({ leads: true, epoch })
    const scene = new Scene(store)
    const lease = await scene.running({ policy: { lease_ttl_seconds: 5, continuation_seconds: 60 } })
    const refused: string[] = []
    const beat = async () => {
      const heard = await scene.heartbeat(lease)
      if (heard.kind === 'refused') refused.push(heard.reason)
    }
    lasting = { scene, lease, beating: setInterval(() => void beat(), BEAT_MS), refused }
  })
  afterAll(async () => {
    clearInterval(lasting.beating)
    for (const node of started) await node.end('SIGKILL')
    await client.end()
    await store.close()
    await database.leave()
  })

  async function start(): Promise<NodeProcess> {
    const node = await NodeProcess.start(database.url)
    started.push(node)
    return node
  }

  async function follow(next: NodeProcess, withinMs: number): Promise<void> {
    expect(await next.untilLeads()).toBeLessThan(withinMs)
    expect(next.standing).toEqual({ leads: true, epoch: ++epoch })
    leader = next
  }

  /** Starts `count` runs whose worker never sends a heartbeat. */
  async function abandoned(scene: Scene, count: number, continuation_seconds = 1): Promise<Leased[]> {
    const leases: Leased[] = []
    for (let i = 0; i < count; i++) leases.push(await scene.running({ policy: { ...TIMES, continuation_seconds } }))
    return leases
  }

  async function expectReapedOnce(scene: Scene, leases: readonly Leased[]): Promise<void> {
    for (const { jobId } of leases) {
      await until('the run to be retried', async () => (await scene.runs(jobId)).length > 1)
      expect(await scene.runs(jobId)).toMatchObject([{ state: 'TIMED_OUT' }, { state: 'PENDING', retry_count: 1 }])
      expect(await scene.events(jobId)).toHaveLength(4)
    }
  }

  test('a leader that stops is replaced immediately', async () => {
    const next = await start()
    expect(next.standing).toEqual({ leads: false, epoch })
    const stopping = leader.end('SIGTERM')
    await follow(next, 3_000)
    await stopping
  })

  test('a leader that is killed is replaced within ten seconds, twice', async () => {
    const scene = new Scene(store)
    const leases: Leased[] = []
    for (let kill = 0; kill < size(1, 20); kill++) {
      const next = await start()
      leases.push(...(await abandoned(scene, 5)))
      await leader.end('SIGKILL')
      await follow(next, 10_000)
    }
    await expectReapedOnce(scene, leases)
  })

  /**
   * Inserts the end of this run without committing. A leader that ends the run waits in its transaction, for the process that this
   * returns.
   */
  async function obstruct({ jobId }: Leased): Promise<number> {
    await client.query('BEGIN')
    await client.query(
      `INSERT INTO ichido.ended (job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, created_at,
          finished_at, n)
        SELECT job_id, run_no, run_id, user_id, false, 'SUCCEEDED', attempt, retry_count, version, run_at, created_at, 0, n
        FROM ichido.held WHERE job_id = $1`,
      [jobId],
    )
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
    return only(rows).pid
  }

  test('a leader that is paused during a write is replaced, and the write has no effect', async () => {
    const scene = new Scene(store)
    const next = await start()
    const paused = leader
    const leases = await abandoned(scene, 5, LONG_MS / 1000)
    const obstructing = await obstruct(only(leases.slice(0, 1)))
    // The leader has ended the run, and only the commit is missing.
    const waits = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
      AND query LIKE '%DELETE FROM ichido.held%' AND $1 = ANY (pg_blocking_pids(pid))`
    await until('the leader to wait in its transaction', async () => (await sql(store, waits, obstructing)).length)
    paused.signal('SIGSTOP')
    await client.query('ROLLBACK')
    await follow(next, 12_000)
    const ledAtMs = await store.read(readClock())

    // While the new leader still waits for the workers, the old leader tries again to end their runs.
    paused.signal('SIGCONT')
    // The old leader first finds that its own term has expired, and then reads from the store that another node leads.
    await until('the former leader to know', async () => paused.standing?.epoch === epoch)
    expect(paused.changes.at(-1)).toEqual({ leads: false, epoch })
    await paused.end('SIGTERM')
    await expectReapedOnce(scene, leases)
    for (const { runId } of leases) {
      expect(integer(await scene.run(runId), 'finished_at')).toBeGreaterThan(ledAtMs + LONG_MS - LATE_MS)
    }
  })

  test('after three changes of leader the lasting run finishes on its first attempt', async () => {
    const { scene, lease, beating, refused } = lasting
    clearInterval(beating)
    expect(epoch).toBeGreaterThanOrEqual(5)
    expect(refused).toEqual([])
    const guards = { version: lease.version, leaderEpoch: lease.leaderEpoch }
    expect(await scene.finish(lease, guards)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })
    expect(await scene.runs(lease.jobId)).toMatchObject([{ state: 'SUCCEEDED', attempt: 1, leader_epoch: 2 }])
  })
})
