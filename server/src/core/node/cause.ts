/** What really happened: clients wrap it, and an address with several IPs wraps it once more, without a message. */
export function innermost(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error instanceof AggregateError && error.errors.length > 0) return innermost(error.errors[0])
  if (error.cause !== undefined) return innermost(error.cause)
  return error.message || ('code' in error ? String(error.code) : error.name)
}

export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : ''
}
