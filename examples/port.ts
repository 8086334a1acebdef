/** PORT is not a port: wrong usage, like a bad flag. */
export class BadPort extends Error {}

/** The port in PORT, or the fallback if PORT is missing or empty. */
export function portFrom({ PORT }: NodeJS.ProcessEnv, fallback: number): number {
  if (PORT === undefined || PORT === '') return fallback
  const port = Number(PORT)
  if (/^\d+$/.test(PORT) && port <= 65_535) return port
  throw new BadPort(`PORT must be a whole number from 0 to 65535, not ${JSON.stringify(PORT)}.`)
}

/** Advice for a port that is in use; null for any other error. */
export function portTaken(error: unknown, port: number): string | null {
  const isTaken = error instanceof Error && 'code' in error && error.code === 'EADDRINUSE'
  return isTaken ? `Port ${port} is in use. Stop what uses it, or name another one: PORT=${port + 1}` : null
}
