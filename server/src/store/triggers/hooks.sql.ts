import { HOOK_SCHEMES } from '@ichido/sdk/protocol'
import { statement } from '../statement.ts'

const scheme = { oneOf: HOOK_SCHEMES } as const

export const HOOK_ROW = {
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
export const readHook = statement('read_hook', {
  params: { name: 'text' },
  row: { ...HOOK_ROW, now: 'integer' },
  sql: `SELECT ${HOOK}, now_ms() AS now FROM ichido.hooks WHERE name = $name`,
})

/** A hook of that name stays as it is, is locked, and is returned. */
export const insertHook = statement('insert_hook', {
  params: { id: 'text', name: 'text', scheme, topic: 'text', secret: 'text', user_id: 'text' },
  row: HOOK_ROW,
  sql: `INSERT INTO ichido.hooks (${HOOK}) VALUES ($id, $name, $scheme, $topic, $secret, $user_id, now_ms(), now_ms())
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING ${HOOK}`,
})

export const updateHook = statement('update_hook', {
  params: { id: 'text', scheme, topic: 'text', secret: 'text' },
  row: HOOK_ROW,
  sql: `UPDATE ichido.hooks SET scheme = $scheme, topic = $topic, secret = $secret, updated_at = now_ms()
    WHERE id = $id RETURNING ${HOOK}`,
})

export const deleteHook = statement('delete_hook', {
  params: { name: 'text' },
  row: HOOK_ROW,
  sql: `DELETE FROM ichido.hooks WHERE name = $name RETURNING ${HOOK}`,
})

/** By name, from the name `after` on. */
export const listHooks = statement('list_hooks', {
  params: { limit: 'integer', after: 'text' },
  row: HOOK_ROW,
  sql: `SELECT ${HOOK} FROM ichido.hooks WHERE name > $after ORDER BY name LIMIT $limit`,
})
