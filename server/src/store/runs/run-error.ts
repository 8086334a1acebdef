export interface RunError {
  code: string
  message: string
  traceback?: string
}

/** Checks the error of a run that was stored as JSON; null when the run has none. */
export function parseRunError(value: unknown): RunError | null {
  if (value === null) return null
  if (!isRunError(value)) throw new TypeError('A stored error is malformed')
  return value
}

function isRunError(value: unknown): value is RunError {
  if (typeof value !== 'object' || value === null) return false
  const { code, message }: Partial<Record<keyof RunError, unknown>> = value
  return typeof code === 'string' && typeof message === 'string'
}
