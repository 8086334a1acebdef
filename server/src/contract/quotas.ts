import { COST_MAX } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { isUserName, userName } from './access.ts'
import { listQuery, yesOrNo } from './common/list.ts'

/** `*` stands for everybody who has no limits of their own. */
export const quotaUser = z.string().refine((text) => text === '*' || isUserName(text), 'names no user')

export const putQuotaRequest = z.strictObject({
  max_concurrent: z
    .int()
    .min(0)
    .max(1_000_000)
    .nullable()
    .default(null)
    .meta({ description: 'How many active jobs and live reservations at a time; null: no limit' }),
  cost_limit: z
    .number()
    .min(0)
    .max(COST_MAX)
    .nullable()
    .default(null)
    .meta({ description: 'Cost per period, in UTC; null: no limit' }),
  period: z.enum(['day', 'month']).default('month'),
  max_bytes: z
    .int()
    .min(0)
    .nullable()
    .default(null)
    .meta({ description: 'Stored payloads, artifacts and logs; null: no limit' }),
})

const RESERVATION_TTL_SECONDS_MAX = 86_400

export const reserveRequest = z.strictObject({
  ttl_seconds: z
    .number()
    .positive()
    .max(RESERVATION_TTL_SECONDS_MAX)
    .optional()
    .meta({ description: 'How long the slot is held if it is not consumed; default 300' }),
  reservation_id: z
    .uuid()
    .toLowerCase()
    .optional()
    .meta({ description: 'A random id that the caller chooses: a repeated request with it holds one slot' }),
})

export const consumeRequest = z.strictObject({ job_id: z.uuid().toLowerCase() })

export const listUsersQuery = z.strictObject(listQuery)

export const listReservationsQuery = z.strictObject({
  user_id: userName.optional(),
  active: yesOrNo.optional().meta({ description: 'true: only reservations that hold a slot now' }),
  ...listQuery,
})
