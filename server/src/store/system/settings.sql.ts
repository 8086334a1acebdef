import { statement } from '../statement.ts'

/** A row stays once it is there, so that it can be locked; the value `null` stands for the default. */
export const listSettings = statement(
  'list_settings',
  'SELECT name, value, updated_at, updated_by FROM ichido.settings',
)

/** Takes name and who. A row must exist before it can be locked. */
export const addSetting = statement(
  'add_setting',
  `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($1, 'null', now_ms(), $2)
    ON CONFLICT (name) DO NOTHING`,
)

/** Takes a name. */
export const lockSetting = statement('lock_setting', {
  postgres: 'SELECT value FROM ichido.settings WHERE name = $1 FOR UPDATE',
  sqlite: 'SELECT value FROM ichido.settings WHERE name = $1',
})
