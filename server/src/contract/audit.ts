import type { AuditShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { instant, listQuery } from './common/list.ts'

const word = z.string().min(1).max(256)

export const listAuditQuery = z.strictObject({
  actor: word.optional().meta({ description: 'Who did it' }),
  action: word.optional().meta({ description: 'What was done, such as `job.cancel`' }),
  subject: word.optional().meta({ description: 'What it was done to: an id or a name' }),
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
    before: z.unknown().meta({ description: 'Null: there was nothing' }),
    after: z.unknown().meta({ description: 'Null: there is nothing any more' }),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'AuditEntry' }) satisfies z.ZodType<AuditShape>
