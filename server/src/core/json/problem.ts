import { type ErrorCode, IchidoError } from '@ichido/sdk/protocol'
import type { z } from 'zod'
import { fieldName } from './text.ts'

/** Says what is wrong with a request, and in which field. */
export interface Problem<Code extends ErrorCode = ErrorCode> {
  code: Code
  field: string
  message: string
}

type Invalid = Problem<'INVALID_PAYLOAD'>

/** A problem without a code of its own. */
export const invalid = (field: string, message: string): Invalid => ({ code: 'INVALID_PAYLOAD', field, message })

/** The refusal of a request with this problem. */
export const errorOf = ({ code, field, message }: Problem): IchidoError => new IchidoError(code, message, { field })

/** Describes the first problem. `what` names the parts of the request. */
export function describeProblem(error: z.ZodError, what: 'field' | 'query parameter' = 'field'): Invalid {
  const [issue] = error.issues
  if (issue === undefined) return invalid('', 'The request is malformed')
  // A query parameter is one text, even if it is parsed as a list.
  const field = fieldName(what === 'query parameter' ? issue.path.slice(0, 1) : issue.path)
  if (issue.code === 'unrecognized_keys') {
    const unknown = fieldName([...issue.path, issue.keys[0] ?? ''])
    return invalid(unknown, `Unknown ${what}: ${unknown}`)
  }
  if (isMissing(issue)) return invalid(field, `Missing required ${what}: ${field}`)
  return invalid(field, `${field === '' ? 'The body' : field} ${describe(issue)}`)
}

function isMissing(issue: z.core.$ZodIssue): boolean {
  return issue.code === 'invalid_type' && issue.path.length > 0 && issue.message.endsWith('received undefined')
}

/** The end of a sentence that begins with the field's name. */
function describe(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case 'invalid_type':
      return `must be ${TYPES[issue.expected] ?? issue.expected}`
    case 'too_small':
      return tooSmall(issue)
    case 'too_big':
      return `must ${amount(issue.origin, issue.inclusive === false ? 'less than' : 'at most', issue.maximum)}`
    case 'invalid_format':
      return FORMATS[issue.format] ?? issue.message
    case 'invalid_value':
      return `must be ${issue.values.length === 1 ? '' : 'one of '}${issue.values.map(String).join(', ')}`
    case 'invalid_key':
      return `has a name that is not allowed: it ${issue.issues.map(describe).join(' and ')}`
    default:
      return issue.message
  }
}

const TYPES: Readonly<Record<string, string>> = {
  array: 'a list',
  boolean: 'true or false',
  int: 'a whole number',
  number: 'a number',
  object: 'a JSON object',
  record: 'a JSON object',
  string: 'a string',
}

const FORMATS: Readonly<Record<string, string>> = {
  datetime: 'must be an ISO 8601 instant, like 2031-05-06T07:08:09Z',
  uuid: 'must be a UUID',
}

function tooSmall({ origin, minimum, inclusive }: z.core.$ZodIssueTooSmall): string {
  if (origin === 'string' && minimum === 1) return 'must not be empty'
  return `must ${amount(origin, inclusive === false ? 'more than' : 'at least', minimum)}`
}

function amount(origin: string, comparison: string, limit: number | bigint): string {
  if (origin === 'string') return `have ${comparison} ${limit} characters`
  if (origin === 'array') return `have ${comparison} ${limit} ${Number(limit) === 1 ? 'entry' : 'entries'}`
  return `be ${comparison} ${limit}`
}
