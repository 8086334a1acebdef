import type { HookScheme } from '@ichido/sdk/protocol'
import { type By, isRecorded, record } from '../access/audit.ts'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import { exactlyOne, one, pageOf, query, type Values, type Work } from '../statement.ts'
import * as sql from './hooks.sql.ts'

export interface Hook {
  id: string
  name: string
  scheme: HookScheme
  topic: string
  /** In the clear: without it no signature can be checked. It leaves the store only for that. */
  secret: string
  userId: string
  createdAtMs: number
  updatedAtMs: number
}

export interface HookChange {
  /** Of the hook that it makes if there is none. */
  id: string
  name: string
  scheme: HookScheme
  topic: string
  /** Null: keep the secret that the hook has. */
  secret: string | null
  /** For a hook that is new and brings no secret of its own. */
  newSecret: string
  userId: string
}

export type PutHook =
  | { kind: 'put'; hook: Hook; isNew: boolean }
  /** A secret of one scheme does not serve the other. */
  | { kind: 'secret_needed' }

export function findHook(name: string): Command<{ hook: Hook; nowMs: number } | null> {
  return command('find_hook', function* work() {
    const row = yield* one(sql.readHook, { name })
    return row === undefined ? null : { hook: toHook(row), nowMs: row.now }
  })
}

/** Makes a hook or changes it. Whose triggers it makes stays as it was. */
export function putHook(change: HookChange, by: By): Command<PutHook> {
  return command('put_hook', function* work(again): Work<PutHook> {
    const { id, name, scheme, topic, secret, newSecret, userId } = change
    const made = { id, name, scheme, topic, secret: secret ?? newSecret, user_id: userId }
    const before = toHook(yield* exactlyOne(sql.insertHook, made))
    if (before.id === id) {
      yield* record(by, 'hook.create', name, null, describe(before))
      return { kind: 'put', hook: before, isNew: true }
    }
    if (yield* isRecorded(again, by)) return { kind: 'put', hook: before, isNew: false }
    if (secret === null && scheme !== before.scheme) return { kind: 'secret_needed' }
    const after = { id: before.id, scheme, topic, secret: secret ?? before.secret }
    const hook = toHook(yield* exactlyOne(sql.updateHook, after))
    const changed = { ...describe(hook), secret_changed: hook.secret !== before.secret }
    yield* record(by, 'hook.update', name, describe(before), changed)
    return { kind: 'put', hook, isNew: false }
  })
}

/** False when there is none. */
export function deleteHook(name: string, by: By): Command<boolean> {
  return command('delete_hook', function* work(again): Work<boolean> {
    const row = yield* one(sql.deleteHook, { name })
    if (row === undefined) return yield* isRecorded(again, by)
    yield* record(by, 'hook.delete', name, describe(toHook(row)), null)
    return true
  })
}

/** By name. */
export function listHooks(limit: number, after: string | null): Command<Listed<Hook>> {
  return command('list_hooks', function* work(): Work<Listed<Hook>> {
    const found = (yield* query(sql.listHooks, { limit: limit + 1, after: after ?? '' })).map(toHook)
    return pageOf(found, limit, ({ name }) => name)
  })
}

/** For the audit: never the secret. */
function describe({ scheme, topic, userId }: Hook) {
  return { scheme, topic, user_id: userId }
}

function toHook(row: Values<typeof sql.HOOK_ROW>): Hook {
  const { id, name, scheme, topic, secret, user_id, created_at, updated_at } = row
  return { id, name, scheme, topic, secret, userId: user_id, createdAtMs: created_at, updatedAtMs: updated_at }
}
