import { statement } from '../statement.ts'

const value = { json: (value: unknown) => value } as const

/** No setting's row is ever removed, so that it can be locked; the value `null` stands for the default. */
export const listSettings = statement('list_settings', {
  params: {},
  row: { name: 'text', value, updated_at: 'integer', updated_by: 'text' },
  sql: 'SELECT name, value, updated_at, updated_by FROM ichido.settings',
})

/** A row must exist before it can be locked. */
export const addSetting = statement('add_setting', {
  params: { name: 'text', updated_by: 'text' },
  row: {},
  sql: `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($name, 'null', now_ms(), $updated_by)
    ON CONFLICT (name) DO NOTHING`,
})

export const lockSetting = statement('lock_setting', {
  params: { name: 'text' },
  row: { value },
  postgres: 'SELECT value FROM ichido.settings WHERE name = $name FOR UPDATE',
  sqlite: 'SELECT value FROM ichido.settings WHERE name = $name',
})
