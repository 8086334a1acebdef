import { ALERT_RULES, type AlertRule } from '@ichido/sdk/protocol'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { query, type RowOf, type SqlValue, select, statement, type Values, type Work } from '../statement.ts'
import { addAlertDeliveries } from '../webhooks/derive-deliveries.ts'
import { LED, LED_SQLITE, TERM, type Term } from './term.ts'

const rule = { oneOf: ALERT_RULES } as const

const ALERT_ROW = {
  id: 'text',
  rule: { passOn: ALERT_RULES },
  subject: 'text',
  message: 'text',
  opened_at: 'integer',
  closed_at: 'integer?',
} as const
const ALERT_COLUMNS = Object.keys(ALERT_ROW).join(', ')
const FINDING = { id: 'text', rule, subject: 'text', message: 'text', at: 'integer' } as const

/** For a definition `d`. */
const OVERDUE = 'd.next_tick_at IS NOT NULL AND d.paused_at IS NULL AND d.next_tick_at < (SELECT now_ms()) - $late_ms'

/** Definitions whose next tick is overdue and that have no open alert. */
const readOverdue = statement('read_overdue', {
  params: { late_ms: 'integer', rule, max: 'integer' },
  row: { name: 'text', next_tick_at: 'integer' },
  sql: `SELECT d.name, d.next_tick_at FROM ichido.job_definitions d
    WHERE ${OVERDUE} AND NOT EXISTS (
      SELECT 1 FROM ichido.alerts a WHERE a.rule = $rule AND a.subject = d.name AND a.closed_at IS NULL)
    ORDER BY d.next_tick_at LIMIT $max`,
})

/** Open alerts of definitions that are on time again, paused or deleted. */
const readCaughtUp = statement('read_caught_up', {
  params: { late_ms: 'integer', rule, max: 'integer' },
  row: { id: 'text' },
  sql: `SELECT a.id FROM ichido.alerts a
    WHERE a.rule = $rule AND a.closed_at IS NULL AND NOT EXISTS (
      SELECT 1 FROM ichido.job_definitions d WHERE d.name = a.subject AND ${OVERDUE})
    LIMIT $max`,
})

const readOpen = statement('read_open_alerts', {
  params: { rule },
  row: { id: 'text', subject: 'text' },
  sql: 'SELECT id, subject FROM ichido.alerts WHERE rule = $rule AND closed_at IS NULL',
})

/**
 * `alerts` is a JSON array of objects with id, rule, subject and message. Guards that no alert is open for the same
 * rule and subject.
 */
const openAlerts = statement('open_alerts', {
  params: { ...TERM, alerts: 'text' },
  row: FINDING,
  postgres: `${LED} INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT t.id, t.rule, t.subject, t.message, now_ms(), NULL
    FROM l CROSS JOIN json_to_recordset($alerts::json) AS t(id uuid, rule text, subject text, message text)
    ON CONFLICT DO NOTHING RETURNING id, rule, subject, message, opened_at AS at`,
  sqlite: `INSERT INTO ichido.alerts (${ALERT_COLUMNS})
    SELECT value ->> 'id', value ->> 'rule', value ->> 'subject', value ->> 'message', now_ms(), NULL FROM json_each($alerts)
    WHERE ${LED_SQLITE} ON CONFLICT DO NOTHING RETURNING id, rule, subject, message, opened_at AS at`,
})

const SAME_TIME = (
  rule: string,
  subject: string,
  opened: string,
  closed: string,
) => `EXISTS (SELECT 1 FROM ichido.alerts a
      WHERE a.rule = ${rule} AND a.subject = ${subject} AND a.opened_at < ${closed} AND a.closed_at > ${opened})`

/**
 * `alerts` is a JSON array of whole alerts. An alert that is stored already adds nothing, nor does one of the same time
 * that another leader stored. There is a row while the term lasts.
 */
const insertAlerts = statement('record_alerts', {
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
const closeAlerts = statement('close_alerts', {
  params: { ...TERM, ids: 'text' },
  row: FINDING,
  postgres: `${LED}, c AS MATERIALIZED (SELECT t.id::uuid AS id FROM l CROSS JOIN json_array_elements_text($ids::json) AS t(id))
    UPDATE ichido.alerts a SET closed_at = now_ms() FROM c WHERE a.id = c.id AND a.closed_at IS NULL
    RETURNING a.id, a.rule, a.subject, a.message, a.closed_at AS at`,
  sqlite: `UPDATE ichido.alerts SET closed_at = now_ms()
    WHERE ${LED_SQLITE} AND closed_at IS NULL AND id IN (SELECT value FROM json_each($ids))
    RETURNING id, rule, subject, message, closed_at AS at`,
})

/** Removes alerts that were closed longer ago. */
const removeAlerts = statement('remove_alerts', {
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
const countOpen = statement('count_open_alerts', {
  params: {},
  row: { rule: 'text', open: 'integer' },
  sql: 'SELECT rule, count(*) AS open FROM ichido.alerts WHERE closed_at IS NULL GROUP BY rule',
})

export interface Alert {
  alertId: string
  rule: AlertRule
  subject: string
  message: string
  openedAtMs: number
  closedAtMs: number | null
}

export type Finding = Pick<Alert, 'rule' | 'subject' | 'message'>

interface Turn {
  open: readonly (Finding & { alertId: string })[]
  /** Ids of alerts. */
  close: readonly string[]
  /** How long alerts are kept after they were closed; 0: for ever. */
  keepMs: number
  batchMax: number
}

export interface Turned {
  opened: Finding[]
  closed: Finding[]
  /** How many were removed. */
  removed: number
}

/**
 * Finds definitions whose next tick is late by more than `lateMs` and that have no open alert, and alerts that are
 * over.
 */
export function findOverdue(
  rule: AlertRule,
  lateMs: number,
  max: number,
): Command<{ late: { name: string; dueAtMs: number }[]; over: string[] }> {
  return command('find_overdue', function* work() {
    const limits = { late_ms: lateMs, rule, max }
    const late = yield* query(readOverdue, limits)
    const over = yield* query(readCaughtUp, limits)
    return {
      late: late.map(({ name, next_tick_at }) => ({ name, dueAtMs: next_tick_at })),
      over: over.map(({ id }) => id),
    }
  })
}

export function findOpen(rule: AlertRule): Command<{ alertId: string; subject: string }[]> {
  return command('find_open_alerts', function* work() {
    const rows = yield* query(readOpen, { rule })
    return rows.map(({ id, subject }) => ({ alertId: id, subject }))
  })
}

/** Opens, closes and removes alerts, and returns the changes. */
export function turnAlerts(term: Term, { open, close, keepMs, batchMax }: Turn): Command<Turned> {
  return command('turn_alerts', function* work(): Work<Turned> {
    const alerts = open.map(({ alertId, rule, subject, message }) => ({ id: alertId, rule, subject, message }))
    const opened = open.length === 0 ? [] : yield* query(openAlerts, { ...term, alerts: JSON.stringify(alerts) })
    const closed = close.length === 0 ? [] : yield* query(closeAlerts, { ...term, ids: JSON.stringify(close) })
    yield* addAlertDeliveries(opened.map(toTurn), closed.map(toTurn))
    const removed = keepMs === 0 ? [] : yield* query(removeAlerts, { ...term, max: batchMax, keep_ms: keepMs })
    return { opened: opened.map(toFinding), closed: closed.map(toFinding), removed: removed.length }
  })
}

function toTurn({ id, at, ...finding }: RowOf<typeof openAlerts>) {
  return { ...finding, alertId: id, atMs: at }
}

function toFinding({ rule, subject, message }: RowOf<typeof openAlerts>): Finding {
  return { rule, subject, message }
}

/** Stores alerts as they are, including closed ones. Returns false if the term is over. */
export function recordAlerts(term: Term, alerts: readonly Alert[]): Command<boolean> {
  return command('record_alerts', function* work(): Work<boolean> {
    const rows = alerts.map(({ alertId, rule, subject, message, openedAtMs, closedAtMs }) => {
      return { id: alertId, rule, subject, message, opened_at: openedAtMs, closed_at: closedAtMs }
    })
    return (yield* query(insertAlerts, { ...term, alerts: JSON.stringify(rows) })).length > 0
  })
}

export interface AlertFilter {
  /** Include closed alerts. */
  all: boolean
  rule: AlertRule | null
}

/** Newest first. */
export function listAlerts({ all, rule }: AlertFilter, limit: number, after: string | null): Command<Listed<Alert>> {
  return command('list_alerts', function* work(): Work<Listed<Alert>> {
    const params: SqlValue[] = []
    const where = ['true']
    if (!all) where.push('closed_at IS NULL')
    if (rule !== null) where.push(`rule = $${params.push(rule)}`)
    if (after !== null) where.push(`id < $${params.push(after)}`)
    const list = `SELECT ${Object.keys(ALERT_ROW)} FROM ichido.alerts WHERE ${where.join(' AND ')}
      ORDER BY id DESC LIMIT ${limit + 1}`
    const found = (yield* select(ALERT_ROW, list, params)).map(toAlert)
    return pageOf(found, limit, ({ alertId }) => alertId)
  })
}

/** The number of open alerts by rule. */
export function countOpenAlerts(): Command<Record<string, number>> {
  return command('count_open_alerts', function* work(): Work<Record<string, number>> {
    return Object.fromEntries((yield* query(countOpen, {})).map(({ rule, open }) => [rule, open]))
  })
}

function toAlert({ id, opened_at, closed_at, ...finding }: Values<typeof ALERT_ROW>): Alert {
  return { alertId: id, ...finding, openedAtMs: opened_at, closedAtMs: closed_at }
}
