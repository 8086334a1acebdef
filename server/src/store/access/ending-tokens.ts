import { type Command, command } from '../port.ts'
import { query, type Work } from '../statement.ts'
import { readEndingTokens, readEndingWorkerTokens } from './ending-tokens.sql.ts'

/** A token that nobody has replaced and that ends soon. `id`: of the API token, or of the worker. */
export type EndingToken = { id: string; name: string; endsAtMs: number } & (
  | { of: 'user'; owner: string }
  | { of: 'worker' }
)

/** At most so many of each sort, those that end first. */
export function findEndingTokens(withinMs: number, max: number): Command<EndingToken[]> {
  return command('find_ending_tokens', function* work(): Work<EndingToken[]> {
    const limits = { within_ms: withinMs, max }
    const ofUsers = yield* query(readEndingTokens, limits)
    const ofWorkers = yield* query(readEndingWorkerTokens, limits)
    return [
      ...ofUsers.map(({ id, name, owner, expires_at }) => ({
        of: 'user' as const,
        owner,
        id,
        name,
        endsAtMs: expires_at,
      })),
      ...ofWorkers.map(({ id, name, expires_at }) => ({ of: 'worker' as const, id, name, endsAtMs: expires_at })),
    ]
  })
}
