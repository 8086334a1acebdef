import { JOB_STATES, OPERATION_ACTIONS, OPERATION_STATES } from '@ichido/sdk/protocol'
import { isListOf, isNumber, isObjectOf, isOneOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import { FREE } from '../dead-letters/free.sql.ts'
import type { JobFilter } from '../jobs/job-filter.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'

/** Selects dead letters; a null field matches any. */
export interface DeadFilter {
  queue: string | null
  kind: string | null
  errorCode: string | null
  userId: string | null
  deadFromMs: number | null
  deadToMs: number | null
  /** Text in the error's message; the case does not matter. */
  text: string | null
}

const isDeadFilter = isObjectOf<DeadFilter>({
  queue: orNull(isText),
  kind: orNull(isText),
  errorCode: orNull(isText),
  userId: orNull(isText),
  deadFromMs: orNull(isNumber),
  deadToMs: orNull(isNumber),
  text: orNull(isText),
})

const isJobFilter = isObjectOf<JobFilter>({
  states: isListOf(isOneOf(JOB_STATES)),
  pendingFor: orNull(isOneOf(['artifacts', 'run_at', 'worker'])),
  userId: orNull(isText),
  queue: orNull(isText),
  kind: orNull(isText),
  label: orNull(isObjectOf({ name: isText, value: isText })),
  key: orNull(isText),
  shortId: orNull(isText),
  errorCode: orNull(isText),
  text: orNull(isText),
  waitingLongerThanMs: orNull(isNumber),
  createdFromMs: orNull(isNumber),
  createdToMs: orNull(isNumber),
})

const state = { passOn: OPERATION_STATES } as const
const action = { oneOf: OPERATION_ACTIONS } as const

export const OPERATION_ROW = {
  id: 'text',
  action,
  actor: 'text',
  job_filter: { json: stored('filter', orNull(isJobFilter)) },
  dead_filter: { json: stored('filter', orNull(isDeadFilter)) },
  job_ids: { json: stored('list of jobs', orNull(isListOf(isText))) },
  per_second: 'integer?',
  state,
  version: 'integer',
  prepared: 'flag',
  at_dead_at: 'integer',
  at_user_id: 'text',
  at_job_id: 'text',
  matched: 'integer',
  done: 'integer',
  waiting: 'integer',
  skipped: 'integer',
  refused: 'integer',
  next_at: 'integer',
  began_at: 'integer',
  ended_at: 'integer?',
} as const

export const OPERATION_COLUMNS = Object.keys(OPERATION_ROW).join(', ')

/** Filters and the list are JSON. `prepared`: the dead letters of a redrive are marked, or the jobs of another operation are counted. */
export const insertOperation = statement('insert_operation', {
  params: {
    id: 'text',
    action,
    actor: 'text',
    job_filter: 'text?',
    dead_filter: 'text?',
    job_ids: 'text?',
    per_second: 'integer?',
    prepared: 'flag',
    matched: 'integer',
  },
  row: {},
  sql: `INSERT INTO ichido.operations (${OPERATION_COLUMNS})
    VALUES ($id, $action, $actor, $job_filter, $dead_filter, $job_ids, $per_second, 'running', 1, $prepared, 0, '', '${FIRST_ID}',
      $matched, 0, 0, 0, 0, 0, now_ms(), NULL)`,
})

export const readOperation = statement('read_operation', {
  params: { id: 'text' },
  row: OPERATION_ROW,
  sql: `SELECT ${OPERATION_COLUMNS} FROM ichido.operations WHERE id = $id`,
})

/** `user_id`: the user that the jobs must belong to; null: any. */
export const markListed = statement('mark_listed', {
  params: { redrive_id: 'text', job_id: 'text', user_id: 'text?' },
  row: { job_id: 'text' },
  postgres: `UPDATE ichido.dead_letters d SET redrive_id = t.redrive_id
    FROM unnest($redrive_id::uuid[], $job_id::uuid[], $user_id::text[]) AS t(redrive_id, job_id, user_id)
    WHERE d.job_id = t.job_id AND (t.user_id IS NULL OR d.user_id = t.user_id) AND ${FREE} RETURNING d.job_id`,
  sqlite: `UPDATE ichido.dead_letters AS d SET redrive_id = $redrive_id
    WHERE job_id = $job_id AND ($user_id IS NULL OR user_id = $user_id) AND ${FREE} RETURNING job_id`,
})

/** Removes these jobs from the redrive. */
export const unmark = statement('unmark', {
  params: { redrive_id: 'text', job_id: 'text' },
  row: {},
  postgres: `UPDATE ichido.dead_letters d SET redrive_id = NULL
    FROM unnest($redrive_id::uuid[], $job_id::uuid[]) AS t(redrive_id, job_id)
    WHERE d.job_id = t.job_id AND d.redrive_id = t.redrive_id`,
  sqlite: 'UPDATE ichido.dead_letters SET redrive_id = NULL WHERE redrive_id = $redrive_id AND job_id = $job_id',
})

/** Soonest first. `in_ms` is the time until the operation may continue. */
export const readRunning = statement('read_running', {
  params: { max: 'integer' },
  row: { id: 'text', version: 'integer', in_ms: 'integer' },
  sql: `SELECT id, version, next_at - now_ms() AS in_ms FROM ichido.operations WHERE state = 'running' ORDER BY next_at LIMIT $max`,
})

export const countRunning = statement('count_running', {
  params: {},
  row: { count: 'integer' },
  sql: `SELECT count(*) AS count FROM ichido.operations WHERE state = 'running'`,
})

/**
 * Guards the version that was seen. If two leaders continue an operation at once, one takes this step: the row stays
 * locked until the commit, and then has another version.
 */
export const takeStep = statement('take_step', {
  params: { ...TERM, id: 'text', version: 'integer' },
  row: { ...OPERATION_ROW, now: 'integer' },
  postgres: `${LED}
    UPDATE ichido.operations r SET version = r.version + 1 FROM l
    WHERE r.id = $id AND r.version = $version AND r.state = 'running' RETURNING ${OPERATION_COLUMNS}, now_ms() AS now`,
  sqlite: `UPDATE ichido.operations SET version = version + 1
    WHERE id = $id AND version = $version AND state = 'running' AND ${LED_SQLITE} RETURNING ${OPERATION_COLUMNS}, now_ms() AS now`,
})

/** Stores where to continue marking or counting. */
export const recordPrepared = statement('record_prepared', {
  params: { id: 'text', prepared: 'flag', matched: 'integer', at_dead_at: 'integer', at_job_id: 'text' },
  row: {},
  sql: `UPDATE ichido.operations SET prepared = $prepared, matched = $matched, at_dead_at = $at_dead_at, at_job_id = $at_job_id
    WHERE id = $id`,
})

/** The dead letters of a redrive after this user and job. */
export const readMarked = statement('read_marked', {
  params: { redrive_id: 'text', user_id: 'text', job_id: 'text', max: 'integer' },
  row: { user_id: 'text', job_id: 'text' },
  sql: `SELECT user_id, job_id FROM ichido.dead_letters
    WHERE redrive_id = $redrive_id AND (user_id, job_id) > ($user_id, $job_id) ORDER BY user_id, job_id LIMIT $max`,
})

/** Counts the dead letters of this user after the job. */
export const countMarked = statement('count_marked', {
  params: { redrive_id: 'text', user_id: 'text', job_id: 'text' },
  row: { count: 'integer' },
  sql: `SELECT count(*) AS count FROM ichido.dead_letters
    WHERE redrive_id = $redrive_id AND user_id = $user_id AND job_id > $job_id`,
})

/** Stores the last user and job, the counts, and when the operation may continue. */
export const recordStep = statement('record_step', {
  params: {
    id: 'text',
    at_user_id: 'text',
    at_job_id: 'text',
    matched: 'integer',
    done: 'integer',
    waiting: 'integer',
    skipped: 'integer',
    refused: 'integer',
    next_at: 'integer',
  },
  row: {},
  sql: `UPDATE ichido.operations SET at_user_id = $at_user_id, at_job_id = $at_job_id, matched = $matched, done = $done,
      waiting = $waiting, skipped = $skipped, refused = $refused, next_at = $next_at
    WHERE id = $id`,
})

/**
 * A job that matched and was not changed counts as skipped when the operation is done: its state changed meanwhile. When the
 * operation is aborted, the job is left alone.
 */
export const endOperation = statement('end_operation', {
  params: { id: 'text', state },
  row: OPERATION_ROW,
  sql: `UPDATE ichido.operations SET state = $state, version = version + 1, ended_at = now_ms(), waiting = 0,
      skipped = CASE WHEN $state = 'done' AND matched - done - refused > skipped THEN matched - done - refused ELSE skipped END
    WHERE id = $id AND state = 'running' RETURNING ${OPERATION_COLUMNS}`,
})
