import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { one, query, statement, type Work } from '../statement.ts'

const value = { json: (value: unknown) => value } as const

/** A setting's row is never removed, so that it can be locked. The value `null` means the default. */
const selectSettings = statement('list_settings', {
  params: {},
  row: { name: 'text', value, updated_at: 'integer', updated_by: 'text' },
  sql: 'SELECT name, value, updated_at, updated_by FROM ichido.settings',
})

/** A row must exist before it can be locked. */
const addSetting = statement('add_setting', {
  params: { name: 'text', updated_by: 'text' },
  row: {},
  sql: `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($name, 'null', now_ms(), $updated_by)
    ON CONFLICT (name) DO NOTHING`,
})

const lockSetting = statement('lock_setting', {
  params: { name: 'text' },
  row: { value },
  postgres: 'SELECT value FROM ichido.settings WHERE name = $name FOR UPDATE',
  sqlite: 'SELECT value FROM ichido.settings WHERE name = $name',
})

/** The value is JSON. */
export const putSetting = statement('put_setting', {
  params: { name: 'text', value: 'text', updated_by: 'text' },
  row: {},
  sql: `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($name, $value, now_ms(), $updated_by)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at, updated_by = excluded.updated_by`,
})

/** The first value stays. */
export const claimSetting = statement('claim_setting', {
  params: { name: 'text', value: 'text', updated_by: 'text' },
  row: {},
  sql: `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($name, $value, now_ms(), $updated_by)
    ON CONFLICT (name) DO NOTHING`,
})

export const readSetting = statement('read_setting', {
  params: { name: 'text' },
  row: { value: { json: (value) => value } },
  sql: 'SELECT value FROM ichido.settings WHERE name = $name',
})

export interface StoredSetting {
  name: string
  /** Null: it was reset to its default. */
  value: unknown
  updatedAtMs: number
  updatedBy: string
}

export function findSettings(): Command<StoredSetting[]> {
  return command('find_settings', function* work(): Work<StoredSetting[]> {
    return (yield* query(selectSettings, {})).map(({ name, value, updated_at, updated_by }) => ({
      name,
      value,
      updatedAtMs: updated_at,
      updatedBy: updated_by,
    }))
  })
}

/** Null restores the default. A change to the same value is not recorded. */
export function changeSetting(name: string, value: number | null, by: By): Command<void> {
  return command('change_setting', function* work(again): Work<void> {
    if (value !== null) yield* query(addSetting, { name, updated_by: by.actor })
    const before = (yield* one(lockSetting, { name }))?.value ?? null
    if (before === value || (yield* isRecorded(again, by))) return
    yield* query(putSetting, { name, value: JSON.stringify(value), updated_by: by.actor })
    const action = value === null ? 'setting.delete' : 'setting.put'
    yield* record(by, action, name, partOf(before), partOf(value))
  })
}

const partOf = (value: unknown) => (value === null ? null : { value })
