import { isMapOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { parseRunError, RELEASED_OUTCOME, RUN_STATES } from '../../core/run/run-state.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'
import { WEBHOOK, WEBHOOK_ROW } from './webhooks.ts'

/** There is a row while the term lasts. Its lock keeps the term until the commit. */
export const holdTerm = statement('hold_term', {
  params: TERM,
  row: { led: 'integer' },
  postgres: `${LED} SELECT 1 AS led FROM l`,
  sqlite: `SELECT 1 AS led WHERE ${LED_SQLITE}`,
})

const LISTENING = `SELECT ${WEBHOOK}, p.tx AS since FROM ichido.webhooks w LEFT JOIN ichido.webhook_places p ON p.id = w.id
    WHERE w.disabled_at IS NULL ORDER BY w.id`

/** The enabled webhooks. The lock keeps them until the commit, so that no delivery outlives its webhook. */
export const readListening = statement('read_listening_webhooks', {
  params: {},
  row: { ...WEBHOOK_ROW, since: 'integer?' },
  postgres: `${LISTENING} FOR SHARE OF w`,
  sqlite: LISTENING,
})

export const readPlace = statement('read_webhook_place', {
  params: { id: 'text' },
  row: { tx: 'integer', job_id: 'text', run_no: 'integer' },
  sql: 'SELECT tx, job_id, run_no FROM ichido.webhook_places WHERE id = $id',
})

/** The first place stays. */
export const addPlace = statement('add_webhook_place', {
  params: { id: 'text', tx: 'integer', job_id: 'text', run_no: 'integer' },
  row: {},
  sql: `INSERT INTO ichido.webhook_places (id, tx, job_id, run_no) VALUES ($id, $tx, $job_id, $run_no) ON CONFLICT (id) DO NOTHING`,
})

/**
 * The next run of the ended run `e`, if the policy of its job made it. A retry by a person begins to count at 0 again. So does
 * a run that the worker of `e` adopted, but its `start_id` is the lease of `e`.
 */
const policyMade = (r: string, found: string) =>
  `(SELECT ${r}.job_id FROM ichido.${found} AND ${r}.run_no = e.run_no + 1 AND (${r}.retry_count > 0${r === 'q' ? '' : ` OR ${adopted(r)}`}))`

const adopted = (r: string) => `${r}.start_id = CAST(e.job_id AS text) || '.' || e.token`

/**
 * The job ended with the run `e`: it succeeded, was canceled, or became a dead letter. A later retry by a person does not
 * change that. A run that a worker gave back is always followed by another.
 */
const FINAL = `(e.state IN ('SUCCEEDED', 'CANCELED') OR (coalesce(e.outcome_hash, '') <> '${RELEASED_OUTCOME}'
      AND ${policyMade('q', 'ready q WHERE by_key(q.job_id, e.job_id)')} IS NULL
      AND ${policyMade('h', 'held h WHERE by_key(h.job_id, e.job_id)')} IS NULL
      AND ${policyMade('n', 'ended n WHERE n.job_id = e.job_id')} IS NULL))`

const END_ROW = {
  tx: 'integer',
  job_id: 'text',
  run_no: 'integer',
  run_id: 'text',
  state: { oneOf: RUN_STATES },
  attempt: 'integer',
  retry_count: 'integer',
  error: { json: parseRunError },
  finished_at: 'integer',
  kind: 'text',
  queue: 'text',
  user_id: 'text',
  labels: { json: stored('labels', orNull(isMapOf(isText))) },
  created_at: 'integer',
  callback_url: 'text?',
  final: 'flag',
} as const

const COLUMNS = `e.job_id, e.run_no, e.run_id, e.state, e.attempt, e.retry_count, e.error, e.finished_at,
    j.kind, j.queue, j.user_id, j.labels, j.created_at, c.url AS callback_url, ${FINAL} AS final`
const JOBS = 'JOIN ichido.jobs j ON j.id = e.job_id LEFT JOIN ichido.callbacks c ON c.job_id = e.job_id'

/** The place after which a statement reads. */
const AFTER = { tx: 'integer', job_id: 'text', run_no: 'integer' } as const
const after = (tx: string) =>
  `${tx} >= $tx AND (${tx}, e.job_id, e.run_no) > (CAST($tx AS bigint), $job_id, CAST($run_no AS integer))`

/** SQLite: the event of an end leads to its run, and the rowid of the event stands for the transaction. */
const ENDS_SQLITE = `ichido.events v JOIN ichido.ended e ON e.job_id = v.job_id AND e.n = v.n ${JOBS}
    WHERE v.stage = 'run'`

/** Reads ends of runs of the transactions before `high`, in their order. */
export const readEnds = statement('read_ends', {
  params: { ...AFTER, high: 'integer', max: 'integer' },
  row: END_ROW,
  postgres: `SELECT e.ended_tx AS tx, ${COLUMNS}
    FROM (SELECT * FROM ichido.ended e WHERE ${after('e.ended_tx')} AND e.ended_tx < $high
      ORDER BY e.ended_tx, e.job_id, e.run_no LIMIT $max) e ${JOBS}
    ORDER BY e.ended_tx, e.job_id, e.run_no`,
  sqlite: `SELECT v.rowid AS tx, ${COLUMNS} FROM ${ENDS_SQLITE} AND ${after('v.rowid')} AND v.rowid < $high
    ORDER BY v.rowid LIMIT $max`,
})

/** The same for some jobs. `job_ids` is a JSON array. */
export const readEndsOf = statement('read_ends_of', {
  params: { ...AFTER, job_ids: 'text' },
  row: END_ROW,
  postgres: `SELECT e.ended_tx AS tx, ${COLUMNS} FROM json_array_elements_text($job_ids::json) AS t(id)
    JOIN ichido.ended e ON e.job_id = t.id::uuid ${JOBS}
    WHERE ${after('e.ended_tx')} ORDER BY e.ended_tx, e.job_id, e.run_no`,
  sqlite: `SELECT v.rowid AS tx, ${COLUMNS} FROM ${ENDS_SQLITE} AND v.job_id IN (SELECT value FROM json_each($job_ids))
    AND ${after('v.rowid')} ORDER BY v.rowid`,
})

/** A message that is there already stays. */
export const insertDeliveries = statement('insert_webhook_deliveries', {
  params: {
    id: 'text',
    webhook_id: 'text',
    type: 'text',
    subject_id: 'text',
    subject_n: 'integer',
    payload: 'text',
    url: 'text?',
    host: 'text?',
    user_id: 'text?',
  },
  row: { id: 'text' },
  postgres: `INSERT INTO ichido.webhook_deliveries
      (id, webhook_id, type, subject_id, subject_n, payload, url, host, user_id, state, attempts, failures, next_at, created_at)
    SELECT t.id, t.webhook_id, t.type, t.subject_id, t.subject_n, t.payload, t.url, t.host, t.user_id, 'pending', 0, 0,
      now_ms(), now_ms()
    FROM unnest($id::uuid[], $webhook_id::uuid[], $type::text[], $subject_id::uuid[], $subject_n::integer[], $payload::text[],
        $url::text[], $host::text[], $user_id::text[])
      AS t(id, webhook_id, type, subject_id, subject_n, payload, url, host, user_id) ORDER BY t.webhook_id, t.subject_id, t.subject_n
    ON CONFLICT DO NOTHING RETURNING id`,
  sqlite: `INSERT INTO ichido.webhook_deliveries
      (id, webhook_id, type, subject_id, subject_n, payload, url, host, user_id, state, attempts, failures, next_at, created_at)
    VALUES ($id, $webhook_id, $type, $subject_id, $subject_n, $payload, $url, $host, $user_id, 'pending', 0, 0, now_ms(), now_ms())
    ON CONFLICT DO NOTHING RETURNING id`,
})
