import pg from 'pg'
import { realWorld } from '../../server/src/node/world.ts'
import { openPostgres } from '../../server/src/store/engines/postgres/postgres.ts'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'

const JOBS = `INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, estimated_cost_micros, created_at)
  SELECT id, 'welcome', 'default', 'local', payload, '{}', 0, 0, $3 FROM s`
const LIVE =
  'job_id, run_id, run_no, queue, kind, user_id, retry_count, priority, run_at, fair_tag, created_at, attempt, version, n'
const READY = `INSERT INTO ichido.ready (${LIVE}, bytes)
  SELECT id, id, 1, 'default', 'welcome', 'local', 0, 0, $3, $3, $3, 0, 1, 1, octet_length(payload) FROM s`
const KEYS = `INSERT INTO ichido.idempotency_keys (idempotency_key, user_id, operation, request_hash, hash_version, job_id,
    response_status, response_body, created_at, expires_at)
  SELECT key, 'local', 'submit', repeat('0', 64), 1, id, 201, repeat('x', 250), $3, $3 + 86400000 FROM u`
const GIVEN = 's AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::text[]) AS t(id, payload))'
const PLAIN = { name: 'plain', text: `WITH ${GIVEN}, j AS (${JOBS}) ${READY}` }
const KEYED = {
  name: 'keyed',
  text: `WITH ${GIVEN}, u AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $4::text[]) AS t(id, key)), j AS (${JOBS}),
    r AS (${READY}) ${KEYS}`,
}

const EVENTS = (state: string) => `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT job_id, n + 1, 'run', n + 1, '', '{"state":"${state}","attempt":1}', $2 FROM m`

/** Moves the known runs of `$1` to the next room, without searching, guards or answers. */
const LEASE = {
  name: 'lease',
  text: `WITH m AS (DELETE FROM ichido.ready WHERE job_id = ANY($1::uuid[]) RETURNING ${LIVE}),
    h AS (INSERT INTO ichido.held (${LIVE}, worker_id, poll_id, token, assigned_at, lease_expires_at, lease_ttl_ms,
        continuation_ms, start_id, started_at, leader_epoch)
      SELECT ${LIVE.replace('attempt, version, n', 'attempt + 1, version + 1, n + 1')}, 'worker', 'poll', repeat('x', 22), $2, $2,
        60000, 60000, 'start', $2, 1 FROM m)
    ${EVENTS('RUNNING')}`,
}
const FINISH = {
  name: 'finish',
  text: `WITH m AS (DELETE FROM ichido.held WHERE job_id = ANY($1::uuid[])
      RETURNING ${LIVE}, worker_id, token, assigned_at, start_id, started_at, leader_epoch, lease_expires_at),
    x AS (INSERT INTO ichido.ended (job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, fair_tag,
        created_at, worker_id, token, assigned_at, start_id, started_at, leader_epoch, lease_expires_at, finished_at, n, outcome_hash)
      SELECT job_id, run_no, run_id, user_id, true, 'SUCCEEDED', attempt, retry_count, version + 1, run_at, fair_tag, created_at,
        worker_id, token, assigned_at, start_id, started_at, leader_epoch, lease_expires_at, $2, n + 1, repeat('0', 64) FROM m)
    ${EVENTS('SUCCEEDED')}`,
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
    const ids = numbers.map(() => realWorld.uuid())
    const values = [ids, numbers.map((n) => JSON.stringify(payload(n))), Date.now()]
    await pool.query(keyed ? { ...KEYED, values: [...values, numbers.map(keyOf)] } : { ...PLAIN, values })
    waiting.push(...numbers.map((n, i): [number, string] => [n, ids[i] ?? '']))
  }
  async function workOff(begins: (n: number) => void): Promise<void> {
    while (waiting.length > 0) {
      const taken = waiting.slice(0, MOVES)
      waiting = waiting.slice(MOVES)
      const jobIds = taken.map(([, jobId]) => jobId)
      await pool.query({ ...LEASE, values: [jobIds, Date.now()] })
      for (const [n] of taken) begins(n)
      await pool.query({ ...FINISH, values: [jobIds, Date.now()] })
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
