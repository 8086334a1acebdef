import { statement } from '../statement.ts'

/** Takes id, actor, action, subject, before, after: who changed what, in the transaction that changes it. */
export const insertAudit = statement(
  'insert_audit',
  `INSERT INTO ichido.audit (id, actor, action, subject, before, after, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, now_ms())`,
)
