import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import { one, pageOf, query, type SqlValue, select, type Values, type Work } from '../statement.ts'
import { AUDIT_ROW, insertAudit, readAuditTime } from './audit.sql.ts'

/** Who asks for a change, and the id of the entry that will tell of it, made before the transaction begins. */
export interface By {
  actor: string
  id: string
}

/** What a thing was and what it is now; null: there was none, or there is none any more. */
type Part = Readonly<Record<string, unknown>> | null

/** One entry, in the transaction that makes the change. */
export function* record(by: By, action: string, subject: string, before: Part, after: Part): Work<void> {
  const json = (part: Part) => (part === null ? null : JSON.stringify(part))
  yield* query(insertAudit, { ...by, action, subject, before: json(before), after: json(after) })
}

/**
 * Whether an earlier try was committed unheard. Asked under the lock that the change is made under: by then that try has
 * ended. To change again would undo what somebody else has changed since.
 */
export function* isRecorded(again: boolean, by: By): Work<boolean> {
  return again && (yield* one(readAuditTime, { id: by.id })) !== undefined
}

export interface AuditEntry {
  auditId: string
  actor: string
  action: string
  subject: string
  before: unknown
  after: unknown
  createdAtMs: number
}

export interface AuditFilter {
  actor: string | null
  action: string | null
  subject: string | null
  fromMs: number | null
  toMs: number | null
}

/** Newest first. What follows an entry that retention has removed meanwhile has gone with it. */
export function listAudit(filter: AuditFilter, limit: number, after: string | null): Command<Listed<AuditEntry>> {
  return command('list_audit', function* work(): Work<Listed<AuditEntry>> {
    const params: SqlValue[] = []
    const bind = (value: SqlValue) => `$${params.push(value)}`
    const where = ['true']
    for (const column of ['actor', 'action', 'subject'] as const) {
      const value = filter[column]
      if (value !== null) where.push(`${column} = ${bind(value)}`)
    }
    if (filter.fromMs !== null) where.push(`created_at >= ${bind(filter.fromMs)}`)
    if (filter.toMs !== null) where.push(`created_at < ${bind(filter.toMs)}`)
    if (after !== null) {
      const last = yield* one(readAuditTime, { id: after })
      if (last === undefined) return { rows: [], next: null }
      where.push(`(created_at, id) < (${bind(last.created_at)}, ${bind(after)})`)
    }
    const list = `SELECT ${Object.keys(AUDIT_ROW)} FROM ichido.audit WHERE ${where.join(' AND ')}
      ORDER BY created_at DESC, id DESC LIMIT ${limit + 1}`
    const found = (yield* select(AUDIT_ROW, list, params)).map(toEntry)
    return pageOf(found, limit, ({ auditId }) => auditId)
  })
}

function toEntry({ id, created_at, ...entry }: Values<typeof AUDIT_ROW>): AuditEntry {
  return { auditId: id, createdAtMs: created_at, ...entry }
}
