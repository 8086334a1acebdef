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
    .meta({ description: 'Active jobs and live reservations at one time; null: no limit' }),
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
    .meta({ description: 'Then the slot is free again, if it was not consumed; default 300' }),
  reservation_id: z
    .uuid()
    .toLowerCase()
    .optional()
    .meta({ description: 'Chosen by the caller at random: sent again with it, the request holds one slot' }),
})

export const consumeRequest = z.strictObject({ job_id: z.uuid().toLowerCase() })

export const listUsersQuery = z.strictObject(listQuery)

export const listReservationsQuery = z.strictObject({
  user_id: userName.optional(),
  active: yesOrNo.optional().meta({ description: 'true: only those that hold a slot now' }),
  ...listQuery,
})
