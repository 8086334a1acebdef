import type { z } from 'zod'
import { describeProblem } from '../../core/json/problem.ts'
import { EXIT, Failure } from '../output/exit.ts'

/** What flags say, checked by the server's own contract before anything is sent or kept; `flags`: by which each field is given. */
export function checked<T>(schema: z.ZodType<T>, given: unknown, flags: Readonly<Record<string, string>>): T {
  const parsed = schema.safeParse(given)
  if (parsed.success) return parsed.data
  const { field, message } = describeProblem(parsed.error)
  const flag = flags[field] ?? flags[field.split('.')[0] ?? '']
  throw new Failure(flag === undefined ? message : message.replace(field, flag), undefined, EXIT.usage)
}
