import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { exactlyOne, query, type RowOf, type Work } from '../statement.ts'
import { addCallbackSecret, lockCallbackSecret, readCallbackSecret, rotateCallbackSecret } from './callbacks.sql.ts'

/** What messages are signed with. */
export interface Secret {
  /** It is stored in plain text, because messages are signed with it. */
  secret: string
  /** The secret before the last rotation. Messages are signed with it, too, until `untilMs`. */
  oldSecret: { secret: string; untilMs: number } | null
}

/** The secret for callbacks of a user's jobs. @param fresh the secret of a user who has none */
export function keepCallbackSecret(userId: string, fresh: string): Command<Secret> {
  return command('keep_callback_secret', function* work(): Work<Secret> {
    yield* query(addCallbackSecret, { user_id: userId, secret: fresh })
    return toSecret(yield* exactlyOne(readCallbackSecret, { user_id: userId }))
  })
}

export function changeCallbackSecret(userId: string, fresh: string, overlapMs: number, by: By): Command<Secret> {
  return command('rotate_callback_secret', function* work(again): Work<Secret> {
    // The row is there, and a rotation at the same time waits for this one.
    yield* query(addCallbackSecret, { user_id: userId, secret: fresh })
    const before = toSecret(yield* exactlyOne(lockCallbackSecret, { user_id: userId }))
    if (yield* isRecorded(again, by)) return before
    // A user without a secret has just got the new one.
    if (before.secret !== fresh) {
      yield* query(rotateCallbackSecret, { user_id: userId, secret: fresh, overlap_ms: overlapMs })
    }
    yield* record(by, 'callback.rotate-secret', userId, null, null)
    return toSecret(yield* exactlyOne(readCallbackSecret, { user_id: userId }))
  })
}

type SecretRow = RowOf<typeof readCallbackSecret>

export function toSecret({ secret, old_secret, old_secret_until }: SecretRow): Secret {
  const isWhole = old_secret !== null && old_secret_until !== null
  return { secret, oldSecret: isWhole ? { secret: old_secret, untilMs: old_secret_until } : null }
}
