import { statement } from '../statement.ts'

const HOOK = 'id, name, scheme, topic, secret, user_id, created_at, updated_at'

/** Takes a name; answers also with the store's time, which a signed timestamp is held against. */
export const readHook = statement('read_hook', `SELECT ${HOOK}, now_ms() AS now FROM ichido.hooks WHERE name = $1`)

/** Takes id, name, scheme, topic, secret, user. A hook of that name stays as it is, is locked, and is the answer. */
export const insertHook = statement(
  'insert_hook',
  `INSERT INTO ichido.hooks (${HOOK}) VALUES ($1, $2, $3, $4, $5, $6, now_ms(), now_ms())
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING ${HOOK}`,
)

/** Takes id, scheme, topic, secret. */
export const updateHook = statement(
  'update_hook',
  `UPDATE ichido.hooks SET scheme = $2, topic = $3, secret = $4, updated_at = now_ms() WHERE id = $1 RETURNING ${HOOK}`,
)

export const deleteHook = statement('delete_hook', `DELETE FROM ichido.hooks WHERE name = $1 RETURNING ${HOOK}`)

/** Takes a maximum and the name to go on after. */
export const listHooks = statement(
  'list_hooks',
  `SELECT ${HOOK} FROM ichido.hooks WHERE name > $2 ORDER BY name LIMIT $1`,
)
