import { statement } from '../statement.ts'

/**
 * Records who changed what, in the transaction that changes it. The same entry again, after an uncertain commit, is no
 * second entry. Nothing changes an entry, and retention alone removes it.
 */
export const insertAudit = statement('insert_audit', {
  params: { id: 'text', actor: 'text', action: 'text', subject: 'text', before: 'text?', after: 'text?' },
  row: {},
  sql: `INSERT INTO ichido.audit (id, actor, action, subject, before, after, created_at)
    VALUES ($id, $actor, $action, $subject, $before, $after, now_ms()) ON CONFLICT (id) DO NOTHING`,
})

export const readAuditTime = statement('read_audit_time', {
  params: { id: 'text' },
  row: { created_at: 'integer' },
  sql: 'SELECT created_at FROM ichido.audit WHERE id = $id',
})

const json = { json: (value: unknown) => value } as const

export const AUDIT_ROW = {
  id: 'text',
  actor: 'text',
  action: 'text',
  subject: 'text',
  before: json,
  after: json,
  created_at: 'integer',
} as const
