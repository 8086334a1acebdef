import { DEFAULT_LIST_LIMIT, ERRORS, type ErrorBody, JOB_STATES, NAME_PATTERN, NAME_RULE } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { describeProblem, errorOf } from '../core/json/problem.ts'
import { parseKey } from '../core/keys/key.ts'

/** The parts that the requests and answers of several rooms share. */

const LIST_LIMIT_MAX = 200

/** Reads a value by its schema, and throws the refusal that names the first wrong field. */
export function check<Output>(schema: z.ZodType<Output>, value: unknown): Output {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  throw errorOf(describeProblem(parsed.error))
}

export const name = z.string().regex(NAME_PATTERN, NAME_RULE)
export const nameParams = z.object({ name })
export const isName = (text: string): boolean => NAME_PATTERN.test(text)
export const time = z.iso.datetime()
export const uuid = z.uuid().toLowerCase()
export const state = z.enum(JOB_STATES).meta({ id: 'JobState' })

/** An instant, as milliseconds since 1970. */
export const instant = z.iso.datetime({ offset: true }).transform((text) => Date.parse(text))

export const yesOrNo = z.enum(['true', 'false']).transform((text) => text === 'true')

/** A key that deduplicates requests. */
export const dedupeKey = z.string().superRefine((text, context) => {
  const parsed = parseKey(text)
  if (!parsed.ok) context.addIssue({ code: 'custom', message: parsed.problem })
})

export const errorBody = z
  .object({
    error: z.object({
      code: z.enum(Object.keys(ERRORS) as [keyof typeof ERRORS]),
      message: z.string(),
      details: z.record(z.string(), z.unknown()),
      request_id: z.string().meta({ description: 'Identifies the request in the log of the server' }),
    }),
  })
  .meta({ id: 'Error' }) satisfies z.ZodType<ErrorBody>

export const listQuery = {
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(LIST_LIMIT_MAX)
    .default(DEFAULT_LIST_LIMIT)
    .meta({ description: 'Entries per answer' }),
  cursor: z.string().max(256).optional().meta({ description: 'The `next_cursor` of the previous page' }),
}

export const pageQuery = z.strictObject(listQuery)

export const page = <T extends z.ZodType>(entry: T) =>
  z.object({ data: z.array(entry), next_cursor: z.string().nullable() })

/** A cursor is opaque, because its content may change. It has the list's name, so that no other list accepts it. */
export function encodeCursor(list: string, place: string): string {
  return Buffer.from(`${list}:${place}`).toString('base64url')
}

/** @param isPlace checks the place in the list; the default is an id. */
export function decodeCursor(list: string, cursor: string, isPlace = isUuid): string | null {
  const text = Buffer.from(cursor, 'base64url').toString('latin1')
  const place = text.slice(list.length + 1)
  return text === `${list}:${place}` && isPlace(place) ? place : null
}

export function isUuid(text: string): boolean {
  return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)
}
