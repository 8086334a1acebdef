import type { AuditShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { instant, listQuery } from './common/list.ts'

const word = z.string().min(1).max(256)

export const listAuditQuery = z.strictObject({
  actor: word.optional().meta({ description: 'The user who made the change' }),
  action: word.optional().meta({ description: 'The change, such as `job.cancel`' }),
  subject: word.optional().meta({ description: 'The id or name of the changed thing' }),
  from: instant.optional().meta({ description: 'At this instant or later' }),
  to: instant.optional().meta({ description: 'Before this instant' }),
  ...listQuery,
})

export const auditEntry = z
  .object({
    audit_id: z.uuid(),
    actor: z.string(),
    action: z.string(),
    subject: z.string(),
    before: z.unknown().meta({ description: 'Null: it did not exist before' }),
    after: z.unknown().meta({ description: 'Null: it no longer exists' }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'AuditEntry' }) satisfies z.ZodType<AuditShape>
