import { ALERT_RULES, type AlertShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery, yesOrNo } from './common/list.ts'

export const listAlertsQuery = z.strictObject({
  all: yesOrNo.optional().meta({ description: 'Also list closed alerts' }),
  rule: z.enum(ALERT_RULES).optional().meta({ description: 'Only alerts of this rule' }),
  ...listQuery,
})

export const alert = z
  .object({
    alert_id: z.uuid(),
    rule: z.enum(ALERT_RULES),
    subject: z.string(),
    message: z.string(),
    opened_at: z.iso.datetime(),
    closed_at: z.iso.datetime().nullable().meta({ description: 'Null while it is open' }),
  })
  .meta({ id: 'Alert' }) satisfies z.ZodType<AlertShape>
