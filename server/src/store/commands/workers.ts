import { type Command, command } from '../port.ts'
import * as sql from '../sql/workers.ts'
import { each, integer, integerOrNull, one, text, type Work } from '../statement.ts'

export interface WorkerToken {
  tokenHash: string
  workerId: string
  /** The queues it may lease from; null: all of them. */
  queues: readonly string[] | null
  state: 'valid' | 'expired' | 'revoked'
}

export function findWorkerToken(tokenHash: string): Command<WorkerToken | null> {
  return command('find_worker_token', function* work(): Work<WorkerToken | null> {
    const row = yield* one(sql.findWorkerToken, tokenHash)
    if (row === undefined) return null
    const expired = integer(row, 'expires_at') <= integer(row, 'now')
    return {
      tokenHash: text(row, 'token_hash'),
      workerId: text(row, 'worker_id'),
      queues: queuesOf(text(row, 'queues')),
      state: integerOrNull(row, 'revoked_at') !== null ? 'revoked' : expired ? 'expired' : 'valid',
    }
  })
}

/**
 * Those of the workers that may lease, locked against being revoked until the commit: the first step of a transaction
 * that leases, before queues are locked. Workers of the node's own process are not registered, so do not ask for them.
 */
export function* shareWorkers(workerIds: Iterable<string>): Work<Set<string>> {
  const ids = [...new Set(workerIds)].sort()
  const rows = yield* each(
    sql.shareWorkers,
    ids.map((id) => [id]),
  )
  return new Set(rows.map((row) => text(row, 'worker_id')))
}

function queuesOf(json: string): string[] | null {
  return JSON.parse(json) as string[] | null
}
