import type { z } from 'zod'

/** What is wrong with a request, in words that name the field. */
export interface Problem {
  field: string
  message: string
}

export function describeProblem(error: z.ZodError): Problem {
  const [issue] = error.issues
  if (issue === undefined) return { field: '', message: 'The request is malformed' }
  const field = issue.path.map(String).join('.')
  if (issue.code === 'unrecognized_keys') {
    const unknown = [...(field === '' ? [] : [field]), issue.keys[0] ?? ''].join('.')
    return { field: unknown, message: `Unknown field: ${unknown}` }
  }
  if (issue.code === 'invalid_type' && issue.input === undefined && isMissing(issue)) {
    return { field, message: `Missing required field: ${field}` }
  }
  return { field, message: field === '' ? issue.message : `${field}: ${issue.message}` }
}

function isMissing(issue: z.core.$ZodIssue): boolean {
  return issue.message.endsWith('received undefined')
}
