import { z } from 'zod'
import { listQuery, yesOrNo } from './common/list.ts'
import { KEY_TTL_HOURS_MAX } from './submit.ts'

export const extendKeyRequest = z.strictObject({
  ttl_hours: z
    .number()
    .positive()
    .max(KEY_TTL_HOURS_MAX)
    .meta({ description: 'How long the key lives from now on; the lifetime is never shortened' }),
})

export const listKeysQuery = z.strictObject({
  active: yesOrNo.optional().meta({ description: 'true: only keys that have not expired' }),
  ...listQuery,
})
