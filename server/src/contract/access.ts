import { ROLES, SECONDS_MAX } from '@ichido/sdk/protocol'
import { z } from 'zod'

/** Users are named by whoever makes their tokens: a name, a mail address, a service account. */
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
