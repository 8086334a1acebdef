import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import type { Leased } from '../../../src/store/leasing/lease-runs.ts'
import { integer } from '../../../src/store/statement.ts'
import { readClock } from '../../../src/store/system/leadership.ts'
import { NodeProcess } from '../../../src/testing/nodes/node-process.ts'
import { only, Scene } from '../../../src/testing/store/scene.ts'
import { openNode, sql, until } from '../../../src/testing/store/store.ts'

/**
 * Real processes on PostgreSQL: whatever happens to the leader, another one leads soon, and nothing is done twice. The tests
 * go on from one another, so that one run lives through all of it.
 */

const TIMES = {
  lease_ttl_seconds: 1,
  backoff: { baseSeconds: 3600, capSeconds: 3600, jitter: 0 },
}
const BEAT_MS = 500
const LONG_MS = 4_000
/** By which a test may hear of a new leader. */
const LATE_MS = 3_000

describe('the leader', () => {
  let database: FreshDatabase
  let store: PostgresStore
  let client: pg.Client
  let leader: NodeProcess
  let epoch = 2
  const started: NodeProcess[] = []
  /** The run that goes on all the while, and the heartbeats of its worker. */
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

  /** So many runs whose worker is never heard of again. */
  async function abandoned(scene: Scene, count: number, continuation_seconds = 1): Promise<Leased[]> {
    const leases: Leased[] = []
    for (let i = 0; i < count; i++) leases.push(await scene.running({ policy: { ...TIMES, continuation_seconds } }))
    return leases
  }

  async function expectReapedOnce(scene: Scene, leases: readonly Leased[]): Promise<void> {
    for (const { jobId } of leases) {
      await until('the run to be handed on', async () => (await scene.runs(jobId)).length > 1)
      expect(await scene.runs(jobId)).toMatchObject([{ state: 'TIMED_OUT' }, { state: 'PENDING', retry_count: 1 }])
      expect(await scene.events(jobId)).toHaveLength(4)
    }
  }

  test('that stops is followed at once', async () => {
    const next = await start()
    expect(next.standing).toEqual({ leads: false, epoch })
    const stopping = leader.end('SIGTERM')
    await follow(next, 3_000)
    await stopping
  })

  test('that is killed is followed within ten seconds, and again', async () => {
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

  /** An event of this run that is not committed: whoever is about to write it waits in the middle of its transaction. */
  async function obstruct({ runId, jobId }: Leased): Promise<void> {
    const [run] = await sql(store, 'SELECT last_event_n FROM ichido.runs WHERE id = $1', runId)
    const n = integer(run, 'last_event_n') + 1
    await client.query('BEGIN')
    await client.query(
      `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
        VALUES ($1, $2, 'run', $2, 'work', '{}', 0)`,
      [jobId, n],
    )
  }

  test('that is paused in the middle of a write is followed; when it goes on, that write changes nothing', async () => {
    const scene = new Scene(store)
    const next = await start()
    const paused = leader
    const leases = await abandoned(scene, 5, LONG_MS / 1000)
    await obstruct(only(leases.slice(0, 1)))
    // The run has ended as far as it can tell; only the commit is missing.
    const waits = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
      AND query LIKE 'INSERT INTO ichido.events%'`
    await until('the leader to be in the middle of it', async () => (await sql(store, waits)).length)
    paused.signal('SIGSTOP')
    await client.query('ROLLBACK')
    await follow(next, 12_000)
    const ledAtMs = await store.read(readClock())

    // While the new one still waits for the workers itself, the old one tries again to end their runs.
    paused.signal('SIGCONT')
    // It first finds that its own term has lapsed, and then, from the store, that another one leads.
    await until('the former leader to know', async () => paused.standing?.epoch === epoch)
    expect(paused.changes.at(-1)).toEqual({ leads: false, epoch })
    await paused.end('SIGTERM')
    await expectReapedOnce(scene, leases)
    for (const { runId } of leases) {
      expect(integer(await scene.run(runId), 'finished_at')).toBeGreaterThan(ledAtMs + LONG_MS - LATE_MS)
    }
  })

  test('has been another one three times: the run that went on all the while finishes on its first attempt', async () => {
    const { scene, lease, beating, refused } = lasting
    clearInterval(beating)
    expect(epoch).toBeGreaterThanOrEqual(5)
    expect(refused).toEqual([])
    const guards = { version: lease.version, leaderEpoch: lease.leaderEpoch }
    expect(await scene.finish(lease, guards)).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })
    expect(await scene.runs(lease.jobId)).toMatchObject([{ state: 'SUCCEEDED', attempt: 1, leader_epoch: 2 }])
  })
})
