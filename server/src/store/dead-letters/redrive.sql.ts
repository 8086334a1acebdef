import { REDRIVE_STATES } from '@ichido/sdk/protocol'
import { isNumber, isObjectOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { FIRST_ID } from '../../core/run/job.ts'
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

const isFilter = isObjectOf<DeadFilter>({
  queue: orNull(isText),
  kind: orNull(isText),
  errorCode: orNull(isText),
  userId: orNull(isText),
  deadFromMs: orNull(isNumber),
  deadToMs: orNull(isNumber),
  text: orNull(isText),
})

const state = { passOn: REDRIVE_STATES } as const

export const REDRIVE_ROW = {
  id: 'text',
  actor: 'text',
  filter: { json: stored('filter', orNull(isFilter)) },
  per_second: 'integer?',
  state,
  version: 'integer',
  marked: 'flag',
  at_dead_at: 'integer',
  at_user_id: 'text',
  at_job_id: 'text',
  matched: 'integer',
  redriven: 'integer',
  waiting: 'integer',
  skipped: 'integer',
  next_at: 'integer',
  began_at: 'integer',
  ended_at: 'integer?',
} as const

export const REDRIVE_COLUMNS = Object.keys(REDRIVE_ROW).join(', ')

/** The filter is JSON. `marked`: all dead letters of the redrive are marked. */
export const insertRedrive = statement('insert_redrive', {
  params: {
    id: 'text',
    actor: 'text',
    filter: 'text',
    per_second: 'integer?',
    marked: 'flag',
    matched: 'integer',
  },
  row: {},
  sql: `INSERT INTO ichido.redrives (${REDRIVE_COLUMNS})
    VALUES ($id, $actor, $filter, $per_second, 'running', 1, $marked, 0, '', '${FIRST_ID}', $matched,
      0, 0, 0, 0, now_ms(), NULL)`,
})

export const readRedrive = statement('read_redrive', {
  params: { id: 'text' },
  row: REDRIVE_ROW,
  sql: `SELECT ${REDRIVE_COLUMNS} FROM ichido.redrives WHERE id = $id`,
})

/** A dead letter is free unless a redrive that still runs has marked it. */
export const FREE = `(d.redrive_id IS NULL OR NOT EXISTS (
  SELECT 1 FROM ichido.redrives o WHERE o.id = d.redrive_id AND o.state = 'running'))`

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

/** Soonest first. `in_ms` is the time until the redrive may continue. */
export const readRunning = statement('read_running', {
  params: { max: 'integer' },
  row: { id: 'text', version: 'integer', in_ms: 'integer' },
  sql: `SELECT id, version, next_at - now_ms() AS in_ms FROM ichido.redrives WHERE state = 'running' ORDER BY next_at LIMIT $max`,
})

export const countRunning = statement('count_running', {
  params: {},
  row: { count: 'integer' },
  sql: `SELECT count(*) AS count FROM ichido.redrives WHERE state = 'running'`,
})

/**
 * Guards the version that was seen. If two leaders continue a redrive at once, one takes this step: the row stays
 * locked until the commit, and then has another version.
 */
export const takeStep = statement('take_step', {
  params: { ...TERM, id: 'text', version: 'integer' },
  row: { ...REDRIVE_ROW, now: 'integer' },
  postgres: `${LED}
    UPDATE ichido.redrives r SET version = r.version + 1 FROM l
    WHERE r.id = $id AND r.version = $version AND r.state = 'running' RETURNING ${REDRIVE_COLUMNS}, now_ms() AS now`,
  sqlite: `UPDATE ichido.redrives SET version = version + 1
    WHERE id = $id AND version = $version AND state = 'running' AND ${LED_SQLITE} RETURNING ${REDRIVE_COLUMNS}, now_ms() AS now`,
})

/** Stores where to continue marking. */
export const recordMarked = statement('record_marked', {
  params: { id: 'text', marked: 'flag', matched: 'integer', at_dead_at: 'integer', at_job_id: 'text' },
  row: {},
  sql: `UPDATE ichido.redrives SET marked = $marked, matched = $matched, at_dead_at = $at_dead_at, at_job_id = $at_job_id
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

/** Stores the last user and job, the counts, and when the redrive may continue. */
export const recordStep = statement('record_step', {
  params: {
    id: 'text',
    at_user_id: 'text',
    at_job_id: 'text',
    redriven: 'integer',
    waiting: 'integer',
    skipped: 'integer',
    next_at: 'integer',
  },
  row: {},
  sql: `UPDATE ichido.redrives SET at_user_id = $at_user_id, at_job_id = $at_job_id, redriven = $redriven, waiting = $waiting,
      skipped = $skipped, next_at = $next_at
    WHERE id = $id`,
})

/** Dead letters that were not redriven are skipped when the redrive is done, and left alone when it is aborted. */
export const endRedrive = statement('end_redrive', {
  params: { id: 'text', state },
  row: REDRIVE_ROW,
  sql: `UPDATE ichido.redrives SET state = $state, version = version + 1, ended_at = now_ms(), waiting = 0,
      skipped = CASE WHEN $state = 'done' THEN matched - redriven ELSE skipped END
    WHERE id = $id AND state = 'running' RETURNING ${REDRIVE_COLUMNS}`,
})
