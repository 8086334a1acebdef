import pg from 'pg'
import { realWorld } from '../../server/src/node/world.ts'
import { openPostgres } from '../../server/src/store/engines/postgres/postgres.ts'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'

const JOBS = `INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, estimated_cost_micros, created_at)
  SELECT id, 'welcome', 'default', 'local', payload, '{}', 0, 0, $4 FROM s`
const RUNS = `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
    priority, run_at, fair_tag, created_at, continuation_state, last_event_n)
  SELECT run_id, id, 1, true, 'default', 'welcome', 'local', 0, 0, 'PENDING', 1, 0, $4, $4, $4, 'NONE', 1 FROM s`
const KEYS = `INSERT INTO ichido.idempotency_keys (idempotency_key, user_id, operation, request_hash, hash_version, job_id,
    response_status, response_body, created_at, expires_at)
  SELECT key, 'local', 'submit', repeat('0', 64), 1, id, 201, repeat('x', 250), $4, $4 + 86400000 FROM u`
const GIVEN = 's AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS t(id, run_id, payload))'
const PLAIN = { name: 'plain', text: `WITH ${GIVEN}, j AS (${JOBS}) ${RUNS}` }
const KEYED = {
  name: 'keyed',
  text: `WITH ${GIVEN}, u AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $5::text[]) AS t(id, key)), j AS (${JOBS}),
    r AS (${RUNS}) ${KEYS}`,
}

/** Updates the known runs of `$1` without searching, guards or answers. */
const move = (
  set: string,
) => `WITH m AS (UPDATE ichido.runs SET version = version + 1, last_event_n = last_event_n + 1, ${set}
    WHERE id = ANY($1::uuid[]) RETURNING job_id, last_event_n, kind, state, attempt)
  INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT job_id, last_event_n, 'run', last_event_n, kind, '{"state":"' || state || '","attempt":' || attempt || '}', $2 FROM m`
const LEASE = {
  name: 'lease',
  text: move(`state = 'RUNNING', attempt = attempt + 1, assigned_worker_id = 'worker', assigned_at = $2, started_at = $2,
    poll_id = 'poll', lease_id = id::text || '.' || repeat('x', 22), lease_expires_at = $2, lease_ttl_ms = 60000,
    continuation_ms = 60000, leader_epoch = 1, start_id = 'start'`),
}
const FINISH = {
  name: 'finish',
  text: move(`state = 'SUCCEEDED', finished_at = $2, outcome_hash = repeat('0', 64)`),
}
const MOVES = 250
/** The store uses these settings, too: a plan that was made on an empty table would always scan it. */
const PLANNER = '-c plan_cache_mode=force_generic_plan -c enable_seqscan=off'

/**
 * Writes only the rows that the promises need, in the real tables and indexes, with one statement for all: no network,
 * checks or answers. This is the minimum for a bulk call, and for a lease and a finish.
 */
export async function openFloor({ url }: Settings): Promise<Contestant> {
  const store = await openPostgres({ url, now: Date.now, monotonic: performance.now, sleep: () => Promise.resolve() })
  await store.close()
  const pool = new pg.Pool({ connectionString: url, options: PLANNER })
  let waiting: [number, string][] = []
  async function submitMany(first: number, count: number, keyed: boolean): Promise<void> {
    const numbers = Array.from({ length: count }, (_, i) => first + i)
    const ids = () => numbers.map(() => realWorld.uuid())
    const runIds = ids()
    const values = [ids(), runIds, numbers.map((n) => JSON.stringify(payload(n))), Date.now()]
    await pool.query(keyed ? { ...KEYED, values: [...values, numbers.map(keyOf)] } : { ...PLAIN, values })
    waiting.push(...numbers.map((n, i): [number, string] => [n, runIds[i] ?? '']))
  }
  async function workOff(begins: (n: number) => void): Promise<void> {
    while (waiting.length > 0) {
      const taken = waiting.slice(0, MOVES)
      waiting = waiting.slice(MOVES)
      const runIds = taken.map(([, runId]) => runId)
      await pool.query({ ...LEASE, values: [runIds, Date.now()] })
      for (const [n] of taken) begins(n)
      await pool.query({ ...FINISH, values: [runIds, Date.now()] })
    }
  }
  return {
    submit: (n) => submitMany(n, 1, true),
    submitMany,
    async work(_pace, begins) {
      const working = Promise.all([workOff(begins), workOff(begins)])
      return async () => void (await working)
    },
    close: () => pool.end(),
  }
}
