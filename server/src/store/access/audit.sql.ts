import { statement } from '../statement.ts'

/**
 * Takes id, actor, action, subject, before, after: who changed what, in the transaction that changes it. The same again,
 * after an uncertain commit, is no second entry. Nothing changes an entry, and retention alone removes it.
 */
export const insertAudit = statement(
  'insert_audit',
  `INSERT INTO ichido.audit (id, actor, action, subject, before, after, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, now_ms()) ON CONFLICT (id) DO NOTHING`,
)

/** Takes an id. */
export const readAuditTime = statement('read_audit_time', 'SELECT created_at FROM ichido.audit WHERE id = $1')

export const AUDIT_COLUMNS = 'id, actor, action, subject, before, after, created_at'
