import pg from 'pg'
import { openPostgres } from '../../server/src/store/engines/postgres.ts'
import { realWorld } from '../../server/src/world.ts'
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

/**
 * The rows that the promises need, in the tables and indexes as they are, and nothing else: no wire, no checks, no answers,
 * one statement for all: what is left of a bulk call when everything but the rows is taken away.
 */
export async function openFloor({ url }: Settings): Promise<Contestant> {
  const store = await openPostgres({ url, now: Date.now, monotonic: performance.now, sleep: () => Promise.resolve() })
  await store.close()
  const pool = new pg.Pool({ connectionString: url })
  async function submitMany(first: number, count: number, keyed: boolean): Promise<void> {
    const numbers = Array.from({ length: count }, (_, i) => first + i)
    const ids = () => numbers.map(() => realWorld.uuid())
    const values = [ids(), ids(), numbers.map((n) => JSON.stringify(payload(n))), Date.now()]
    await pool.query(keyed ? { ...KEYED, values: [...values, numbers.map(keyOf)] } : { ...PLAIN, values })
  }
  return {
    submit: (n) => submitMany(n, 1, true),
    submitMany,
    work: () => Promise.reject(new Error('Nobody works here')),
    close: () => pool.end(),
  }
}
