import {
  COST_MAX,
  DEFAULT_RESERVATION_TTL_SECONDS,
  type QuotaShape,
  type ReservationShape,
  type UserShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { isUserName, userName } from './access.ts'
import { listQuery, time, uuid, yesOrNo } from './common.ts'

/** `*` stands for every user without own limits. */
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
    .meta({
      description: `How long the slot is held if it is not consumed; default ${DEFAULT_RESERVATION_TTL_SECONDS}`,
    }),
  reservation_id: uuid
    .optional()
    .meta({ description: 'A random id that the caller chooses: a repeated request with it holds one slot' }),
})

export const consumeRequest = z.strictObject({ job_id: uuid })

export const listReservationsQuery = z.strictObject({
  user_id: userName.optional(),
  active: yesOrNo.optional().meta({ description: 'true: only reservations that hold a slot now' }),
  ...listQuery,
})

const reservationFields = z.object({
  reservation_id: z.uuid(),
  user_id: z.string(),
  state: z.enum(['active', 'consumed', 'released', 'expired']),
  created_at: time,
  expires_at: time,
  job_id: z.uuid().nullable(),
})

export const reservation = reservationFields.meta({ id: 'Reservation' }) satisfies z.ZodType<ReservationShape>

export const newReservation = reservationFields
  .extend({ quota_warnings: z.array(z.string()) })
  .meta({ id: 'NewReservation' })

export const quota = z
  .object({
    user_id: z.string(),
    max_concurrent: z.int().nullable(),
    cost_limit: z.number().nullable(),
    period: z.enum(['day', 'month']),
    custom: z.boolean().meta({ description: "True: the limits are the user's own; false: they are those of `*`" }),
    active_jobs: z.int(),
    active_reservations: z.int(),
    spent: z.number(),
    max_bytes: z.int().nullable(),
    used_bytes: z.int().nullable().meta({ description: 'Null: bytes are not counted without a limit' }),
  })
  .meta({ id: 'Quota' }) satisfies z.ZodType<QuotaShape>

export const user = z
  .object({
    ...quota.shape,
    created_at: time.nullable().meta({ description: 'When its first token was made; null: it never had one' }),
  })
  .meta({ id: 'User' }) satisfies z.ZodType<UserShape>
