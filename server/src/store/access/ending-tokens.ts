import { type Command, command } from '../port.ts'
import { integer, query, text, type Work } from '../statement.ts'
import { readEndingTokens, readEndingWorkerTokens } from './ending-tokens.sql.ts'

/** A token that nobody has replaced and that ends soon. `id`: of the API token, or of the worker. */
export type EndingToken = { id: string; name: string; endsAtMs: number } & (
  | { of: 'user'; owner: string }
  | { of: 'worker' }
)

/** At most so many of each sort, those that end first. */
export function findEndingTokens(withinMs: number, max: number): Command<EndingToken[]> {
  return command('find_ending_tokens', function* work(): Work<EndingToken[]> {
    const ofUsers = yield* query(readEndingTokens, withinMs, max)
    const ofWorkers = yield* query(readEndingWorkerTokens, withinMs, max)
    return [
      ...ofUsers.map((row) => ({
        of: 'user' as const,
        owner: text(row, 'owner'),
        id: text(row, 'id'),
        name: text(row, 'name'),
        endsAtMs: integer(row, 'expires_at'),
      })),
      ...ofWorkers.map((row) => ({
        of: 'worker' as const,
        id: text(row, 'id'),
        name: text(row, 'name'),
        endsAtMs: integer(row, 'expires_at'),
      })),
    ]
  })
}
