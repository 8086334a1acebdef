import { SETTINGS, type SettingName } from '../../core/limits/settings.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import { type Command, command, type Store } from '../../store/port.ts'
import { exactlyOne, queryText, type Work } from '../../store/statement.ts'
import { removeExpiredKeys } from '../../store/submission/keys.ts'
import { readLeadership } from '../../store/system/leadership.ts'
import { sql } from './store.ts'

/** Runs as the current leader. If there is none, the test leads. */
export function removeKeys(max: number): Command<number> {
  return command('remove_keys', function* work(again): Work<number> {
    yield* queryText("UPDATE ichido.leadership SET holder = 'tester' WHERE holder IS NULL")
    const { epoch, holder } = yield* exactlyOne(readLeadership, {})
    return yield* removeExpiredKeys({ epoch, holder: holder ?? '' }, max).work(again)
  })
}

/** These settings, with defaults for all others. */
export function settingsOf(values: Partial<Record<SettingName, number>>) {
  return { get: (name: SettingName) => values[name] ?? SETTINGS[name].default }
}

/**
 * Counts the rows that are left of deleted jobs. A key may outlive its job, and the ledger of ticks stays. On SQLite a
 * placeholder event stands in for the last event.
 */
export async function leftovers(store: Store): Promise<Record<string, number>> {
  const tables = [
    'ready',
    'held',
    'ended',
    'results',
    'events',
    'job_labels',
    'callbacks',
    'dead_letters',
    'expired_keys',
    'once_counters',
  ]
  const found: Record<string, number> = {}
  for (const table of tables) {
    const text = `SELECT t.job_id FROM ichido.${table} t WHERE t.job_id <> '${FIRST_ID}'
      AND NOT EXISTS (SELECT 1 FROM ichido.jobs j WHERE j.id = t.job_id)`
    const rows = await sql(store, text)
    if (rows.length > 0) found[table] = rows.length
  }
  return found
}
