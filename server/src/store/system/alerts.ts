import type { AlertRule } from '@ichido/sdk/protocol'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import { pageOf, query, type SqlValue, select, type Values, type Work } from '../statement.ts'
import * as sql from './alerts.sql.ts'
import type { Term } from './leadership.ts'

export interface Alert {
  alertId: string
  rule: AlertRule
  subject: string
  message: string
  openedAtMs: number
  closedAtMs: number | null
}

export type Finding = Pick<Alert, 'rule' | 'subject' | 'message'>

export interface Turn {
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
  /** How many. */
  removed: number
}

/** Definitions whose next tick is late by more than `lateMs`, as far as no alert says so already, and alerts that are over. */
export function findOverdue(
  rule: AlertRule,
  lateMs: number,
  max: number,
): Command<{ late: { name: string; dueAtMs: number }[]; over: string[] }> {
  return command('find_overdue', function* work() {
    const limits = { late_ms: lateMs, rule, max }
    const late = yield* query(sql.readOverdue, limits)
    const over = yield* query(sql.readCaughtUp, limits)
    return {
      late: late.map(({ name, next_tick_at }) => ({ name, dueAtMs: next_tick_at })),
      over: over.map(({ id }) => id),
    }
  })
}

export function findOpen(rule: AlertRule): Command<{ alertId: string; subject: string }[]> {
  return command('find_open_alerts', function* work() {
    const rows = yield* query(sql.readOpen, { rule })
    return rows.map(({ id, subject }) => ({ alertId: id, subject }))
  })
}

/** Opens, closes and removes alerts; answers what has changed. */
export function turnAlerts(term: Term, { open, close, keepMs, batchMax }: Turn): Command<Turned> {
  return command('turn_alerts', function* work(): Work<Turned> {
    const alerts = open.map(({ alertId, rule, subject, message }) => ({ id: alertId, rule, subject, message }))
    const opened = open.length === 0 ? [] : yield* query(sql.openAlerts, { ...term, alerts: JSON.stringify(alerts) })
    const closed = close.length === 0 ? [] : yield* query(sql.closeAlerts, { ...term, ids: JSON.stringify(close) })
    const removed = keepMs === 0 ? [] : yield* query(sql.removeAlerts, { ...term, max: batchMax, keep_ms: keepMs })
    return { opened, closed, removed: removed.length }
  })
}

/** Stores alerts as they are, also those that are over by now. False when the term is over. */
export function recordAlerts(term: Term, alerts: readonly Alert[]): Command<boolean> {
  return command('record_alerts', function* work(): Work<boolean> {
    const rows = alerts.map(({ alertId, rule, subject, message, openedAtMs, closedAtMs }) => {
      return { id: alertId, rule, subject, message, opened_at: openedAtMs, closed_at: closedAtMs }
    })
    return (yield* query(sql.recordAlerts, { ...term, alerts: JSON.stringify(rows) })).length > 0
  })
}

export interface AlertFilter {
  /** Also those that were closed. */
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
    const list = `SELECT ${Object.keys(sql.ALERT_ROW)} FROM ichido.alerts WHERE ${where.join(' AND ')}
      ORDER BY id DESC LIMIT ${limit + 1}`
    const found = (yield* select(sql.ALERT_ROW, list, params)).map(toAlert)
    return pageOf(found, limit, ({ alertId }) => alertId)
  })
}

/** Of each rule that has any. */
export function countOpenAlerts(): Command<Record<string, number>> {
  return command('count_open_alerts', function* work(): Work<Record<string, number>> {
    return Object.fromEntries((yield* query(sql.countOpen, {})).map(({ rule, open }) => [rule, open]))
  })
}

function toAlert({ id, opened_at, closed_at, ...finding }: Values<typeof sql.ALERT_ROW>): Alert {
  return { alertId: id, ...finding, openedAtMs: opened_at, closedAtMs: closed_at }
}
