import { ALERT_RULES } from '@ichido/sdk/protocol'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from './leadership.sql.ts'

const rule = { oneOf: ALERT_RULES } as const

export const ALERT_ROW = {
  id: 'text',
  rule,
  subject: 'text',
  message: 'text',
  opened_at: 'integer',
  closed_at: 'integer?',
} as const
const ALERT_COLUMNS = Object.keys(ALERT_ROW).join(', ')
const FINDING = { rule, subject: 'text', message: 'text' } as const

/** Of a definition `d`. */
const OVERDUE = 'd.next_tick_at IS NOT NULL AND d.paused_at IS NULL AND d.next_tick_at < (SELECT now_ms()) - $late_ms'

/** Definitions whose next tick is overdue and that have no open alert. */
export const readOverdue = statement('read_overdue', {
  params: { late_ms: 'integer', rule, max: 'integer' },
  row: { name: 'text', next_tick_at: 'integer' },
  sql: `SELECT d.name, d.next_tick_at FROM ichido.job_definitions d
    WHERE ${OVERDUE} AND NOT EXISTS (
      SELECT 1 FROM ichido.alerts a WHERE a.rule = $rule AND a.subject = d.name AND a.closed_at IS NULL)
    ORDER BY d.next_tick_at LIMIT $max`,
})

/** Open alerts of definitions that are on time again, paused or deleted. */
export const readCaughtUp = statement('read_caught_up', {
  params: { late_ms: 'integer', rule, max: 'integer' },
  row: { id: 'text' },
  sql: `SELECT a.id FROM ichido.alerts a
    WHERE a.rule = $rule AND a.closed_at IS NULL AND NOT EXISTS (
      SELECT 1 FROM ichido.job_definitions d WHERE d.name = a.subject AND ${OVERDUE})
    LIMIT $max`,
})

export const readOpen = statement('read_open_alerts', {
  params: { rule },
  row: { id: 'text', subject: 'text' },
  sql: 'SELECT id, subject FROM ichido.alerts WHERE rule = $rule AND closed_at IS NULL',
})

/** `alerts` is a JSON array of objects with id, rule, subject and message. Guards that no alert is open for the same. */
export const openAlerts = statement('open_alerts', {
  params: { ...TERM, alerts: 'text' },
  row: FINDING,
  postgres: `${LED} INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT t.id, t.rule, t.subject, t.message, now_ms(), NULL
    FROM l CROSS JOIN json_to_recordset($alerts::json) AS t(id uuid, rule text, subject text, message text)
    ON CONFLICT DO NOTHING RETURNING rule, subject, message`,
  sqlite: `INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT value ->> 'id', value ->> 'rule', value ->> 'subject', value ->> 'message', now_ms(), NULL FROM json_each($alerts)
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
 * `alerts` is a JSON array of whole alerts. An alert that is stored already adds nothing. Neither does one of the same time
 * that another node saw and stored while it led. There is a row while the term lasts.
 */
export const recordAlerts = statement('record_alerts', {
  params: { ...TERM, alerts: 'text' },
  row: { led: 'integer' },
  postgres: `${LED}, added AS (INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT t.* FROM l CROSS JOIN json_to_recordset($alerts::json)
      AS t(id uuid, rule text, subject text, message text, opened_at bigint, closed_at bigint)
    WHERE NOT ${SAME_TIME('t.rule', 't.subject', 't.opened_at', 't.closed_at')}
    ON CONFLICT DO NOTHING) SELECT 1 AS led FROM l`,
  sqlite: [
    `INSERT INTO ichido.alerts (${ALERT_COLUMNS})
      SELECT value ->> 'id', value ->> 'rule', value ->> 'subject', value ->> 'message', value ->> 'opened_at',
        value ->> 'closed_at' FROM json_each($alerts)
      WHERE ${LED_SQLITE}
        AND NOT ${SAME_TIME("value ->> 'rule'", "value ->> 'subject'", "value ->> 'opened_at'", "value ->> 'closed_at'")}
      ON CONFLICT DO NOTHING`,
    `SELECT 1 AS led WHERE ${LED_SQLITE}`,
  ],
})

/** `ids` is a JSON array. */
export const closeAlerts = statement('close_alerts', {
  params: { ...TERM, ids: 'text' },
  row: FINDING,
  postgres: `${LED}, c AS MATERIALIZED (SELECT t.id::uuid AS id FROM l CROSS JOIN json_array_elements_text($ids::json) AS t(id))
    UPDATE ichido.alerts a SET closed_at = now_ms() FROM c WHERE a.id = c.id AND a.closed_at IS NULL
    RETURNING a.rule, a.subject, a.message`,
  sqlite: `UPDATE ichido.alerts SET closed_at = now_ms()
    WHERE ${LED_SQLITE} AND closed_at IS NULL AND id IN (SELECT value FROM json_each($ids))
    RETURNING rule, subject, message`,
})

/** Removes alerts that were closed longer ago. */
export const removeAlerts = statement('remove_alerts', {
  params: { ...TERM, max: 'integer', keep_ms: 'integer' },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT a.id FROM l CROSS JOIN ichido.alerts a WHERE a.closed_at < (SELECT now_ms()) - $keep_ms::bigint
      ORDER BY a.closed_at LIMIT $max)
    DELETE FROM ichido.alerts a USING c WHERE a.id = c.id RETURNING a.id`,
  sqlite: `DELETE FROM ichido.alerts WHERE ${LED_SQLITE} AND id IN (
      SELECT id FROM ichido.alerts WHERE closed_at < now_ms() - $keep_ms ORDER BY closed_at LIMIT $max) RETURNING id`,
})

/** The rule may be one that only a newer node knows. */
export const countOpen = statement('count_open_alerts', {
  params: {},
  row: { rule: 'text', open: 'integer' },
  sql: 'SELECT rule, count(*) AS open FROM ichido.alerts WHERE closed_at IS NULL GROUP BY rule',
})
