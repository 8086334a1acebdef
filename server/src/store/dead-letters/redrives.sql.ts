import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'

const REDRIVE = `id, actor, filter, per_second, state, version, marked, at_dead_at, at_user_id, at_job_id, matched, redriven,
  waiting, skipped, next_at, began_at, ended_at`

/** Takes id, actor, filter, dead letters per second (or null), whether all are marked, and how many they are. */
export const insertRedrive = statement(
  'insert_redrive',
  `INSERT INTO ichido.redrives (${REDRIVE})
    VALUES ($1, $2, $3, $4, 'running', 1, $5, 0, '', '00000000-0000-0000-0000-000000000000', $6, 0, 0, 0, 0, now_ms(), NULL)`,
)

export const readRedrive = statement('read_redrive', `SELECT ${REDRIVE} FROM ichido.redrives WHERE id = $1`)

/** A dead letter is free unless a redrive that still runs has marked it. */
export const FREE = `(d.redrive_id IS NULL OR NOT EXISTS (
  SELECT 1 FROM ichido.redrives o WHERE o.id = d.redrive_id AND o.state = 'running'))`

/** Takes a redrive, job ids, and the user whose they must be (or null). */
export const markListed = statement('mark_listed', {
  postgres: `UPDATE ichido.dead_letters d SET redrive_id = t.redrive_id
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS t(redrive_id, job_id, user_id)
    WHERE d.job_id = t.job_id AND (t.user_id IS NULL OR d.user_id = t.user_id) AND ${FREE} RETURNING d.job_id`,
  sqlite: `UPDATE ichido.dead_letters AS d SET redrive_id = $1
    WHERE job_id = $2 AND ($3 IS NULL OR user_id = $3) AND ${FREE} RETURNING job_id`,
})

/** Takes a redrive and jobs that it lets go of. */
export const unmark = statement('unmark', {
  postgres: `UPDATE ichido.dead_letters d SET redrive_id = NULL FROM unnest($1::uuid[], $2::uuid[]) AS t(redrive_id, job_id)
    WHERE d.job_id = t.job_id AND d.redrive_id = t.redrive_id`,
  sqlite: 'UPDATE ichido.dead_letters SET redrive_id = NULL WHERE redrive_id = $1 AND job_id = $2',
})

/** Takes a maximum; answers with those that run, soonest first, and in how many ms each may go on. */
export const readRunning = statement(
  'read_running',
  `SELECT id, version, next_at - now_ms() AS in_ms FROM ichido.redrives WHERE state = 'running' ORDER BY next_at LIMIT $1`,
)

export const countRunning = statement(
  'count_running',
  `SELECT count(*) AS count FROM ichido.redrives WHERE state = 'running'`,
)

/**
 * Takes epoch, holder, a redrive and the version it was seen at. Of two that go on with it at once one takes this step: the
 * row stays locked until the step is committed, and then has another version.
 */
export const takeStep = statement('take_step', {
  postgres: `${LED}
    UPDATE ichido.redrives r SET version = r.version + 1 FROM l
    WHERE r.id = $3 AND r.version = $4 AND r.state = 'running' RETURNING ${REDRIVE}, now_ms() AS now`,
  sqlite: `UPDATE ichido.redrives SET version = version + 1
    WHERE id = $3 AND version = $4 AND state = 'running' AND ${LED_SQLITE} RETURNING ${REDRIVE}, now_ms() AS now`,
})

/** Takes a redrive, whether all are marked, how many were, and where to go on. */
export const recordMarked = statement(
  'record_marked',
  `UPDATE ichido.redrives SET marked = $2, matched = $3, at_dead_at = $4, at_job_id = $5 WHERE id = $1`,
)

/** Takes a redrive, user and job to go on after, and a maximum. */
export const readMarked = statement(
  'read_marked',
  `SELECT user_id, job_id FROM ichido.dead_letters
    WHERE redrive_id = $1 AND (user_id, job_id) > ($2, $3) ORDER BY user_id, job_id LIMIT $4`,
)

/** Takes a redrive, a user and a job; counts what is left of this user after it. */
export const countMarked = statement(
  'count_marked',
  'SELECT count(*) AS count FROM ichido.dead_letters WHERE redrive_id = $1 AND user_id = $2 AND job_id > $3',
)

/** Takes a redrive, user and job that it came to, redriven, waiting, skipped, and when it may go on. */
export const recordStep = statement(
  'record_step',
  `UPDATE ichido.redrives SET at_user_id = $2, at_job_id = $3, redriven = $4, waiting = $5, skipped = $6, next_at = $7
    WHERE id = $1`,
)

/** Takes a redrive and its last state. What it did not redrive is skipped when it is done, and left alone when aborted. */
export const endRedrive = statement(
  'end_redrive',
  `UPDATE ichido.redrives SET state = $2, version = version + 1, ended_at = now_ms(), waiting = 0,
      skipped = CASE WHEN $2 = 'done' THEN matched - redriven ELSE skipped END
    WHERE id = $1 AND state = 'running' RETURNING ${REDRIVE}`,
)

export const REDRIVE_COLUMNS = REDRIVE
