import { putSetting } from '../access/access.sql.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { one, query, type Work } from '../statement.ts'
import { addSetting, listSettings, lockSetting } from './settings.sql.ts'

export interface StoredSetting {
  name: string
  /** Null: it was put back to its default. */
  value: unknown
  updatedAtMs: number
  updatedBy: string
}

export function findSettings(): Command<StoredSetting[]> {
  return command('find_settings', function* work(): Work<StoredSetting[]> {
    return (yield* query(listSettings, {})).map(({ name, value, updated_at, updated_by }) => ({
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
