import { HOOK_SCHEMES, type HookScheme } from '@ichido/sdk/protocol'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { exactlyOne, one, query, statement, type Values, type Work } from '../statement.ts'

const scheme = { oneOf: HOOK_SCHEMES } as const

const HOOK_ROW = {
  id: 'text',
  name: 'text',
  scheme,
  topic: 'text',
  secret: 'text',
  user_id: 'text',
  created_at: 'integer',
  updated_at: 'integer',
} as const

const HOOK = Object.keys(HOOK_ROW).join(', ')

/** Also returns the store's time, which a signed timestamp is compared with. */
const readHook = statement('read_hook', {
  params: { name: 'text' },
  row: { ...HOOK_ROW, now: 'integer' },
  sql: `SELECT ${HOOK}, now_ms() AS now FROM ichido.hooks WHERE name = $name`,
})

/** An existing hook of that name stays unchanged, is locked, and is returned. */
const insertHook = statement('insert_hook', {
  params: { id: 'text', name: 'text', scheme, topic: 'text', secret: 'text', user_id: 'text' },
  row: HOOK_ROW,
  sql: `INSERT INTO ichido.hooks (${HOOK}) VALUES ($id, $name, $scheme, $topic, $secret, $user_id, now_ms(), now_ms())
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING ${HOOK}`,
})

const updateHook = statement('update_hook', {
  params: { id: 'text', scheme, topic: 'text', secret: 'text' },
  row: HOOK_ROW,
  sql: `UPDATE ichido.hooks SET scheme = $scheme, topic = $topic, secret = $secret, updated_at = now_ms()
    WHERE id = $id RETURNING ${HOOK}`,
})

const dropHook = statement('delete_hook', {
  params: { name: 'text' },
  row: HOOK_ROW,
  sql: `DELETE FROM ichido.hooks WHERE name = $name RETURNING ${HOOK}`,
})

/** By name, from the name `after` on. */
const selectHooks = statement('list_hooks', {
  params: { limit: 'integer', after: 'text' },
  row: HOOK_ROW,
  sql: `SELECT ${HOOK} FROM ichido.hooks WHERE name > $after ORDER BY name LIMIT $limit`,
})

export interface Hook {
  id: string
  name: string
  scheme: HookScheme
  topic: string
  /** It is stored in plain text, because signatures are checked with it. It leaves the store only for that. */
  secret: string
  userId: string
  createdAtMs: number
  updatedAtMs: number
}

export interface HookChange {
  /** The id of a new hook. */
  id: string
  name: string
  scheme: HookScheme
  topic: string
  /** Null: keep the current secret. */
  secret: string | null
  /** The secret of a new hook that brings none. */
  newSecret: string
  userId: string
}

type PutHook =
  | { kind: 'put'; hook: Hook; isNew: boolean }
  /** The secret of one scheme is not valid for the other. */
  | { kind: 'secret_needed' }

export function findHook(name: string): Command<{ hook: Hook; nowMs: number } | null> {
  return command('find_hook', function* work() {
    const row = yield* one(readHook, { name })
    return row === undefined ? null : { hook: toHook(row), nowMs: row.now }
  })
}

/** Creates or changes a hook. The user whose triggers it makes stays the same. */
export function putHook(change: HookChange, by: By): Command<PutHook> {
  return command('put_hook', function* work(again): Work<PutHook> {
    const { id, name, scheme, topic, secret, newSecret, userId } = change
    const made = { id, name, scheme, topic, secret: secret ?? newSecret, user_id: userId }
    const before = toHook(yield* exactlyOne(insertHook, made))
    if (before.id === id) {
      yield* record(by, 'hook.create', name, null, describe(before))
      return { kind: 'put', hook: before, isNew: true }
    }
    if (yield* isRecorded(again, by)) return { kind: 'put', hook: before, isNew: false }
    if (secret === null && scheme !== before.scheme) return { kind: 'secret_needed' }
    const after = { id: before.id, scheme, topic, secret: secret ?? before.secret }
    const hook = toHook(yield* exactlyOne(updateHook, after))
    const changed = { ...describe(hook), secret_changed: hook.secret !== before.secret }
    yield* record(by, 'hook.update', name, describe(before), changed)
    return { kind: 'put', hook, isNew: false }
  })
}

/** Returns false if there is none. */
export function deleteHook(name: string, by: By): Command<boolean> {
  return command('delete_hook', function* work(again): Work<boolean> {
    const row = yield* one(dropHook, { name })
    if (row === undefined) return yield* isRecorded(again, by)
    yield* record(by, 'hook.delete', name, describe(toHook(row)), null)
    return true
  })
}

/** By name. */
export function listHooks(limit: number, after: string | null): Command<Listed<Hook>> {
  return command('list_hooks', function* work(): Work<Listed<Hook>> {
    const found = (yield* query(selectHooks, { limit: limit + 1, after: after ?? '' })).map(toHook)
    return pageOf(found, limit, ({ name }) => name)
  })
}

/** For the audit, without the secret. */
function describe({ scheme, topic, userId }: Hook) {
  return { scheme, topic, user_id: userId }
}

function toHook(row: Values<typeof HOOK_ROW>): Hook {
  const { id, name, scheme, topic, secret, user_id, created_at, updated_at } = row
  return { id, name, scheme, topic, secret, userId: user_id, createdAtMs: created_at, updatedAtMs: updated_at }
}
