import { ALERT_RULES, type AlertShape, type BackupShape, JOB_STATES, type SettingShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery, time, yesOrNo } from './common.ts'

/** Any name, because the answer to an unknown name lists the known ones. */
export const settingParams = z.object({ name: z.string().max(100) })

export const putSettingRequest = z.strictObject({
  value: z.number().meta({ description: "Within the setting's bounds; a whole number if it is a count" }),
})

export const setting = z
  .object({
    name: z.string(),
    value: z.number().meta({ description: 'The value in force on the node that answers' }),
    default: z.number(),
    min: z.number(),
    max: z.number(),
    source: z
      .enum(['default', 'stored', 'environment'])
      .meta({ description: 'Where the value comes from; the environment overrides a stored value' }),
    description: z.string(),
    updated_at: time.nullable().meta({ description: 'When the stored value was last changed' }),
    updated_by: z.string().nullable(),
  })
  .meta({ id: 'Setting' }) satisfies z.ZodType<SettingShape>

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
    opened_at: time,
    closed_at: time.nullable().meta({ description: 'Null while it is open' }),
  })
  .meta({ id: 'Alert' }) satisfies z.ZodType<AlertShape>

export const backup = z
  .object({
    name: z.string().meta({ description: 'The name of the file in `DATA_DIR/backups`' }),
    rows: z.int(),
    bytes: z.int(),
  })
  .meta({ id: 'Backup' }) satisfies z.ZodType<BackupShape>

export const stats = z.record(z.enum(JOB_STATES), z.int())
