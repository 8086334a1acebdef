import type { SettingShape } from '@ichido/sdk/protocol'
import { z } from 'zod'

/** Any name: one that there is not is answered with those that there are. */
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
    updated_at: z.iso.datetime().nullable().meta({ description: 'When the stored value was last changed' }),
    updated_by: z.string().nullable(),
  })
  .meta({ id: 'Setting' }) satisfies z.ZodType<SettingShape>
