import { type Command, command, type Listed, pageOf } from '../port.ts'
import { one, query, type SqlValue, select, statement, type Values, type Work } from '../statement.ts'

/**
 * Records a change in the transaction that makes it. Inserting the same entry again, after an uncertain commit, adds
 * nothing. Entries never change, and only retention removes them.
 */
const insertAudit = statement('insert_audit', {
  params: { id: 'text', actor: 'text', action: 'text', subject: 'text', before: 'text?', after: 'text?' },
  row: {},
  sql: `INSERT INTO ichido.audit (id, actor, action, subject, before, after, created_at)
    VALUES ($id, $actor, $action, $subject, $before, $after, now_ms()) ON CONFLICT (id) DO NOTHING`,
})

const readAuditTime = statement('read_audit_time', {
  params: { id: 'text' },
  row: { created_at: 'integer' },
  sql: 'SELECT created_at FROM ichido.audit WHERE id = $id',
})

const json = { json: (value: unknown) => value } as const

const AUDIT_ROW = {
  id: 'text',
  actor: 'text',
  action: 'text',
  subject: 'text',
  before: json,
  after: json,
  created_at: 'integer',
} as const

/** The person who asks for a change, and the id of its audit entry, which is made before the transaction begins. */
export interface By {
  actor: string
  id: string
}

/** The state before or after a change; null: it did not exist. */
type Part = Readonly<Record<string, unknown>> | null

/** Adds an entry, in the transaction of the change. */
export function* record(by: By, action: string, subject: string, before: Part, after: Part): Work<void> {
  const json = (part: Part) => (part === null ? null : JSON.stringify(part))
  yield* query(insertAudit, { ...by, action, subject, before: json(before), after: json(after) })
}

/**
 * True if an earlier try was committed without our knowledge. Call it under the lock of the change: by then the earlier
 * try has ended. A second change could undo a later change by another person.
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

/** Newest first. If retention removed the entry `after`, all later pages are gone, too. */
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
