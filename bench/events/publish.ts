import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { redisAt } from '../../server/src/node/redis-adapters.ts'
import { startNode } from '../../server/src/node/start-node.ts'
import { realWorld } from '../../server/src/node/world.ts'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import type { Services } from '../../server/src/services/index.ts'
import { silentMeter } from '../../server/src/services/system/meter.ts'
import { openPostgres } from '../../server/src/store/engines/postgres/postgres.ts'
import { type Flow, flow, interleave } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const PUBLISHERS = 64
const EVENTS_A_CALL = 16
const ROWS = PUBLISHERS * EVENTS_A_CALL
const WORKER = 'local-bench'
const QUEUE = 'bench'
const STAGE = 'progress'
const DOMAIN = 'scan'
const INSERT = {
  name: 'bare',
  text: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])`,
}

const dataOf = (seq: number) => ({ step: seq, note: 'what a page would show of it' })

interface Measured {
  /** Returns events per second. */
  round(): Promise<number>
  close(): Promise<void>
}

/** Measures until the events are in the store and in Redis, beside bare inserts of the rows, as many per statement. */
export async function publishing(stage: Stage, redisUrl: string): Promise<Comparison> {
  const { size, database, say } = stage
  const bare = await openBare(await database('events_bare'), size.roundMs)
  const ours = await openOurs(await database('events_ours'), redisUrl, stage)
  try {
    say(`publishing, ${PUBLISHERS} publishers, ${EVENTS_A_CALL} events a call`)
    const measures = { bare: () => bare.round(), ours: () => ours.round() }
    const found = await interleave(size, measures)
    return {
      what: `publish into store and Redis, ${ROWS.toLocaleString('en-US')} events under way`,
      unit: '/s',
      ours: found.ours,
      against: 'bare INSERT, as many a statement',
      theirs: found.bare,
      rival: 'limit',
      target: { least: 0.7 },
    }
  } finally {
    await ours.close()
    await bare.close()
  }
}

const rateOf = ({ calls, elapsedMs }: Flow, events: number) => (calls * events * 1_000) / elapsedMs

async function openBare(url: string, durationMs: number): Promise<Measured> {
  const store = await openPostgres({ url, now: Date.now, monotonic: performance.now, sleep: () => Promise.resolve() })
  await store.close()
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  const jobs = Array.from({ length: PUBLISHERS }, () => randomUUID())
  let seq = 0
  async function insert(): Promise<void> {
    const first = seq
    seq += EVENTS_A_CALL
    const seqs = jobs.flatMap(() => Array.from({ length: EVENTS_A_CALL }, (_, i) => first + i))
    const ids = jobs.flatMap((job) => Array.from({ length: EVENTS_A_CALL }, () => job))
    const data = seqs.map((n) => JSON.stringify(dataOf(n)))
    const same = (value: unknown) => seqs.map(() => value)
    const values = [ids, seqs.map((n) => n + 3), same(STAGE), seqs, same(DOMAIN), data, same(Date.now())]
    await pool.query({ ...INSERT, values })
  }
  return {
    round: async () => rateOf(await flow({ callers: 1, durationMs }, insert), ROWS),
    close: () => pool.end(),
  }
}

async function openOurs(databaseUrl: string, redisUrl: string, { size, say }: Stage): Promise<Measured> {
  const inRedis = new Arrivals()
  const node = await startNode({
    storage: { databaseUrl },
    redis: redisAt({ url: redisUrl }),
    // The leader checks each event once more, as it always does with a Redis.
    roles: new Set(['api', 'leader']),
    world: realWorld,
    meter: {
      ...silentMeter,
      relayed: (outcome, count) => (outcome === 'added' || outcome === 'swept') && inRedis.add(count),
    },
    allowNoFsync: false,
    onTrouble: (where, error) => say(`${where}: ${error}`),
  })
  const publishers = await lease(node.services)
  // Each job has one event so far: RUNNING.
  let published = PUBLISHERS
  await inRedis.atLeast(published)
  const seqs = publishers.map(() => 0)
  async function publish(publisher: number): Promise<void> {
    const first = seqs[publisher] ?? 0
    seqs[publisher] = first + EVENTS_A_CALL
    const events = Array.from({ length: EVENTS_A_CALL }, (_, i) => {
      return { stage: STAGE, seq: first + i, data: dataOf(first + i) }
    })
    await node.services.events.publishAll(WORKER, publishers[publisher] ?? '', events)
  }
  return {
    async round() {
      const began = performance.now()
      const each = publishers.map((_, i) => flow({ callers: 1, durationMs: size.roundMs }, () => publish(i)))
      const calls = (await Promise.all(each)).reduce((sum, { calls }) => sum + calls, 0)
      published += calls * EVENTS_A_CALL
      await inRedis.atLeast(published)
      return rateOf({ calls, elapsedMs: performance.now() - began }, EVENTS_A_CALL)
    },
    close: () => node.close(),
  }
}

async function lease({ submission, runs }: Services): Promise<string[]> {
  const job = { kind: DOMAIN, queue: QUEUE, lease_ttl_seconds: 3_600 }
  for (let i = 0; i < PUBLISHERS; i++) await submission.submit(LOCAL_ADMIN, job, { key: null })
  const leases: string[] = []
  while (leases.length < PUBLISHERS) {
    const request = { queues: [QUEUE], kinds: [], max: PUBLISHERS, waitMs: 1_000, startId: 'bench' }
    leases.push(...(await runs.lease(WORKER, request)).map(({ lease_id }) => lease_id))
  }
  return leases
}

/** Counts the arrivals in Redis. Each event is added once, by any node. */
class Arrivals {
  #count = 0
  #wanted = Number.POSITIVE_INFINITY
  #reached = () => {}

  add(count: number): void {
    this.#count += count
    if (this.#count >= this.#wanted) this.#reached()
  }

  atLeast(wanted: number): Promise<void> {
    return new Promise((resolve) => {
      this.#wanted = wanted
      this.#reached = resolve
      this.add(0)
    })
  }
}
