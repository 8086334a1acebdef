import { putSetting } from '../access/access.sql.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { integer, one, query, type Row, text, type Work } from '../statement.ts'
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
    return (yield* query(listSettings)).map((row) => ({
      name: text(row, 'name'),
      value: storedIn(row),
      updatedAtMs: integer(row, 'updated_at'),
      updatedBy: text(row, 'updated_by'),
    }))
  })
}

/** Null puts it back to its default. What changes nothing is not told of. */
export function changeSetting(name: string, value: number | null, by: By): Command<void> {
  return command('change_setting', function* work(again): Work<void> {
    if (value !== null) yield* query(addSetting, name, by.actor)
    const before = storedIn(yield* one(lockSetting, name))
    if (before === value || (yield* isRecorded(again, by))) return
    yield* query(putSetting, { name, value: JSON.stringify(value), updated_by: by.actor })
    const action = value === null ? 'setting.delete' : 'setting.put'
    yield* record(by, action, name, partOf(before), partOf(value))
  })
}

function storedIn(row: Row | undefined): unknown {
  return row === undefined ? null : (JSON.parse(text(row, 'value')) as unknown)
}

const partOf = (value: unknown) => (value === null ? null : { value })
