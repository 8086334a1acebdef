import { statement } from '../statement.ts'

/** Takes name and value (JSON). It stands among the settings, and is none that can be read or changed as one. */
export const addSecret = statement(
  'add_secret',
  `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($1, $2, now_ms(), 'ichido')
    ON CONFLICT (name) DO NOTHING`,
)

export const readSecret = statement('read_secret', 'SELECT value FROM ichido.settings WHERE name = $1')
