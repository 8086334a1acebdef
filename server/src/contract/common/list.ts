import { z } from 'zod'

/** What lists take, and how a place in one is written. */

export const LIST_LIMIT_MAX = 200
export const LIST_LIMIT_DEFAULT = 50

export const listQuery = {
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(LIST_LIMIT_MAX)
    .default(LIST_LIMIT_DEFAULT)
    .meta({ description: 'Entries per answer' }),
  cursor: z.string().max(256).optional().meta({ description: 'The `next_cursor` of the previous page' }),
}

/** An instant, as milliseconds since 1970. */
export const instant = z.iso.datetime({ offset: true }).transform((text) => Date.parse(text))

export const yesOrNo = z.enum(['true', 'false']).transform((text) => text === 'true')

/** Opaque on purpose: what it holds may change. The list's name is in it, so that no other list's cursor is taken. */
export function encodeCursor(list: string, id: string): string {
  return Buffer.from(`${list}:${id}`).toString('base64url')
}

/** @param isId what the list's places are; ids, unless it is said. */
export function decodeCursor(list: string, cursor: string, isId = isUuid): string | null {
  const text = Buffer.from(cursor, 'base64url').toString('latin1')
  const id = text.slice(list.length + 1)
  return text === `${list}:${id}` && isId(id) ? id : null
}

export function isUuid(text: string): boolean {
  return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)
}
