import { type AuditShape, ROLES, SECONDS_MAX, type SessionShape, type TokenShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { ABILITY_NAMES } from '../core/limits/roles.ts'
import { instant, listQuery, time } from './common.ts'

/** The admin who makes a token chooses the user's name: a name, a mail address or a service account. */
export const userName = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$/,
    'must be 1 to 128 letters, digits, dots, colons, dashes, underscores, plus or at signs, the first a letter or digit',
  )

export const isUserName = (text: string): boolean => userName.safeParse(text).success

export const createTokenRequest = z.strictObject({
  user_id: userName,
  role: z.enum(ROLES),
  name: z.string().max(128).optional().meta({ description: 'The purpose of the token, for people' }),
  ttl_seconds: z
    .int()
    .min(1)
    .max(10 * SECONDS_MAX)
    .optional()
    .meta({ description: 'How long the token works; default: until it is revoked' }),
})

export const token = z
  .object({
    token_id: z.uuid(),
    user_id: z.string(),
    role: z.enum(ROLES),
    name: z.string(),
    created_at: time,
    expires_at: time.nullable(),
    revoked_at: time.nullable(),
  })
  .meta({ id: 'Token' }) satisfies z.ZodType<TokenShape>

export const newToken = z.object({
  token_id: z.uuid(),
  token: z.string().meta({ description: 'The secret, shown only in this answer' }),
})

export const createSessionRequest = z.strictObject({
  token: z.string().min(1).max(1_024).meta({ description: 'An API token' }),
})

export const session = z
  .object({
    user_id: z.string(),
    role: z.enum(ROLES),
    abilities: z.array(z.enum(ABILITY_NAMES)).meta({ description: 'The abilities of the role' }),
    expires_at: time.nullable().meta({ description: 'Null: the caller has no session' }),
    csrf_token: z
      .string()
      .nullable()
      .meta({ description: 'The value of the header `ichido-csrf`; null: the caller has no session' }),
    open: z.boolean().meta({ description: 'True in open mode, where nobody needs to sign in' }),
  })
  .meta({ id: 'Session' }) satisfies z.ZodType<SessionShape>

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
    created_at: time,
  })
  .meta({ id: 'AuditEntry' }) satisfies z.ZodType<AuditShape>
