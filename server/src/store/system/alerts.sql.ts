import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from './leadership.sql.ts'

export const ALERT_COLUMNS = 'id, rule, subject, message, opened_at, closed_at'

/** Of a definition `d`, with $1 as how late in ms its next tick may be. */
const OVERDUE = 'd.next_tick_at IS NOT NULL AND d.paused_at IS NULL AND d.next_tick_at < (SELECT now_ms()) - $1'

/** Takes a time in ms, a rule and a maximum: definitions whose tick is late by more, and of which no alert tells. */
export const readOverdue = statement(
  'read_overdue',
  `SELECT d.name, d.next_tick_at FROM ichido.job_definitions d
    WHERE ${OVERDUE} AND NOT EXISTS (
      SELECT 1 FROM ichido.alerts a WHERE a.rule = $2 AND a.subject = d.name AND a.closed_at IS NULL)
    ORDER BY d.next_tick_at LIMIT $3`,
)

/** Takes a time in ms, a rule and a maximum: open alerts of definitions that are in time again, paused, or no more. */
export const readCaughtUp = statement(
  'read_caught_up',
  `SELECT a.id FROM ichido.alerts a
    WHERE a.rule = $2 AND a.closed_at IS NULL AND NOT EXISTS (
      SELECT 1 FROM ichido.job_definitions d WHERE d.name = a.subject AND ${OVERDUE})
    LIMIT $3`,
)

/** Takes a rule. */
export const readOpen = statement(
  'read_open_alerts',
  'SELECT id, subject FROM ichido.alerts WHERE rule = $1 AND closed_at IS NULL',
)

/** Takes a term, and a JSON array of alerts (id, rule, subject, message). Guards: none is open for the same. */
export const openAlerts = statement('open_alerts', {
  postgres: `${LED} INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT t.id, t.rule, t.subject, t.message, now_ms(), NULL
    FROM l CROSS JOIN json_to_recordset($3::json) AS t(id uuid, rule text, subject text, message text)
    ON CONFLICT DO NOTHING RETURNING rule, subject, message`,
  sqlite: `INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT value ->> 'id', value ->> 'rule', value ->> 'subject', value ->> 'message', now_ms(), NULL FROM json_each($3)
    WHERE ${LED_SQLITE} ON CONFLICT DO NOTHING RETURNING rule, subject, message`,
})

const SAME_TIME = (
  rule: string,
  subject: string,
  opened: string,
  closed: string,
) => `EXISTS (SELECT 1 FROM ichido.alerts a
      WHERE a.rule = ${rule} AND a.subject = ${subject} AND a.opened_at < ${closed} AND a.closed_at > ${opened})`

/**
 * Takes a term, and a JSON array of whole alerts. The same again adds nothing, nor does what another node saw of it and stored
 * when it led. Answers with a row while the term lasts.
 */
export const recordAlerts = statement('record_alerts', {
  postgres: `${LED}, added AS (INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT t.* FROM l CROSS JOIN json_to_recordset($3::json)
      AS t(id uuid, rule text, subject text, message text, opened_at bigint, closed_at bigint)
    WHERE NOT ${SAME_TIME('t.rule', 't.subject', 't.opened_at', 't.closed_at')}
    ON CONFLICT DO NOTHING) SELECT 1 AS led FROM l`,
  sqlite: [
    `INSERT INTO ichido.alerts (${ALERT_COLUMNS})
      SELECT value ->> 'id', value ->> 'rule', value ->> 'subject', value ->> 'message', value ->> 'opened_at',
        value ->> 'closed_at' FROM json_each($3)
      WHERE ${LED_SQLITE}
        AND NOT ${SAME_TIME("value ->> 'rule'", "value ->> 'subject'", "value ->> 'opened_at'", "value ->> 'closed_at'")}
      ON CONFLICT DO NOTHING`,
    `SELECT 1 AS led WHERE ${LED_SQLITE}`,
  ],
})

/** Takes a term, and a JSON array of ids. */
export const closeAlerts = statement('close_alerts', {
  postgres: `${LED}, c AS MATERIALIZED (SELECT t.id::uuid AS id FROM l CROSS JOIN json_array_elements_text($3::json) AS t(id))
    UPDATE ichido.alerts a SET closed_at = now_ms() FROM c WHERE a.id = c.id AND a.closed_at IS NULL
    RETURNING a.rule, a.subject, a.message`,
  sqlite: `UPDATE ichido.alerts SET closed_at = now_ms()
    WHERE ${LED_SQLITE} AND closed_at IS NULL AND id IN (SELECT value FROM json_each($3))
    RETURNING rule, subject, message`,
})

/** Takes a term, a maximum and a time in ms: what was closed longer ago is removed. */
export const removeAlerts = statement('remove_alerts', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT a.id FROM l CROSS JOIN ichido.alerts a WHERE a.closed_at < (SELECT now_ms()) - $4::bigint
      ORDER BY a.closed_at LIMIT $3)
    DELETE FROM ichido.alerts a USING c WHERE a.id = c.id RETURNING a.id`,
  sqlite: `DELETE FROM ichido.alerts WHERE ${LED_SQLITE} AND id IN (
      SELECT id FROM ichido.alerts WHERE closed_at < now_ms() - $4 ORDER BY closed_at LIMIT $3) RETURNING id`,
})

export const countOpen = statement(
  'count_open_alerts',
  'SELECT rule, count(*) AS open FROM ichido.alerts WHERE closed_at IS NULL GROUP BY rule',
)
