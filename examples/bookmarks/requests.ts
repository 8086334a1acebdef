import { IchidoError } from 'ichido'
import { z } from 'zod'
import { normalUrl } from './normal-url.ts'

/** Parses requests, and refuses invalid ones with the name of the field. */

const LIMIT_MAX = 100

const saveRequest = z.strictObject({
  url: z.string(),
  source_hint: z.string().min(1).max(64).optional(),
  created_from: z.enum(['web', 'ios', 'bookmarklet', 'share']),
})
export type SaveRequest = z.infer<typeof saveRequest> & { normalUrl: string }

export function parseSave(body: unknown): SaveRequest {
  const request = parse(saveRequest, body)
  try {
    return { ...request, normalUrl: normalUrl(request.url) }
  } catch (error) {
    if (error instanceof TypeError) throw invalid('url', `url ${error.message}`)
    throw error
  }
}

const listQuery = z.strictObject({
  limit: z.coerce.number().int().min(1).max(LIMIT_MAX).default(50),
  cursor: z.coerce.number().int().min(1).default(Number.MAX_SAFE_INTEGER),
})

export const parseList = (query: URLSearchParams) => parse(listQuery, Object.fromEntries(query))

function parse<T>(schema: z.ZodType<T>, value: unknown): T {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  const [issue] = parsed.error.issues
  const field = issue?.path.join('.') ?? ''
  if (field === '') throw invalid('body', issue?.message ?? 'The body is not valid')
  const isMissing = Object(value)[field] === undefined
  throw invalid(field, isMissing ? `Missing required field: ${field}` : `${field}: ${issue?.message}`)
}

const invalid = (field: string, message: string) => new IchidoError('INVALID_PAYLOAD', message, { field })
