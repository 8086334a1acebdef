import { command, type Store } from '../../store/port.ts'
import { query, statement } from '../../store/statement.ts'
import { text } from './rows.ts'
import { sql } from './store.ts'

/** Tells which tables have changed since the last call. */
export interface ChangeLog {
  /** A table's name for each row that was inserted, updated or deleted. */
  since(): Promise<string[]>
}

/** A refused request may be counted. */
const COUNTERS = ['once_counters', 'minute_counts', 'queue_series']
/** A node writes its progress in the queues shortly after a lease, during any later request. */
const SHARED_LATER = ['queue_times']
/** A submission claims new names before it may be refused for another reason. They count for a day and have no other effect. */
const CLAIMED_BEFORE = ['user_names']
/** Any request of a worker is a sign of life, which is written later. */
const SIGNS_OF_LIFE: Readonly<Record<string, readonly string[]>> = { workers: ['last_seen_at', 'detached_at'] }
/** A row without its own limits says nothing about a user. It exists only to be locked. */
const LIMITS_ONLY = 'WHEN (NEW.custom)'

/** Uses database triggers, so that no change is missed. */
export async function watchChanges(store: Store): Promise<ChangeLog> {
  await sql(store, CREATE[store.engine])
  if (store.engine === 'postgres') await sql(store, NOTE_FUNCTION)
  for (const [table, columns] of await tables(store)) {
    if ([...COUNTERS, ...SHARED_LATER, ...CLAIMED_BEFORE].includes(table)) continue
    const watched = columns.filter((column) => !SIGNS_OF_LIFE[table]?.includes(column))
    const row = (name: string) => `(${watched.map((column) => `${name}."${column}"`).join()})`
    await sql(store, TRIGGER[store.engine](table, 'INSERT', table === 'quotas' ? LIMITS_ONLY : ''))
    await sql(store, TRIGGER[store.engine](table, 'UPDATE', UPDATED[store.engine](row('OLD'), row('NEW'))))
    await sql(store, TRIGGER[store.engine](table, 'DELETE', ''))
  }
  let seen = 0
  return {
    async since() {
      const rows = await store.read(command('test', () => query(readChanges, { n: seen })))
      seen = rows.at(-1)?.n ?? seen
      return rows.map(({ changed }) => changed)
    },
  }
}

const readChanges = statement('test_changes', {
  params: { n: 'integer' },
  row: { n: 'integer', changed: 'text' },
  sql: 'SELECT n, changed FROM ichido.test_changes WHERE n > $n ORDER BY n',
})

const CREATE = {
  sqlite: 'CREATE TABLE ichido.test_changes (n INTEGER PRIMARY KEY, changed text NOT NULL)',
  postgres: 'CREATE TABLE ichido.test_changes (n bigserial PRIMARY KEY, changed text NOT NULL)',
}

const NOTE_FUNCTION = `CREATE FUNCTION ichido.test_note() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO ichido.test_changes (changed) VALUES (TG_TABLE_NAME); RETURN NULL; END $$`

/** Some statements lock a row by writing its current values. */
const UPDATED = {
  sqlite: (before: string, after: string) => `WHEN ${before} IS NOT ${after}`,
  postgres: (before: string, after: string) => `WHEN (ROW${before} IS DISTINCT FROM ROW${after})`,
}

const TRIGGER = {
  sqlite: (table: string, verb: string, when: string) =>
    `CREATE TRIGGER ichido.test_${table}_${verb} AFTER ${verb} ON ${table} ${when}
      BEGIN INSERT INTO test_changes (changed) VALUES ('${table}'); END`,
  postgres: (table: string, verb: string, when: string) =>
    `CREATE TRIGGER test_${table}_${verb} AFTER ${verb} ON ichido.${table}
      FOR EACH ROW ${when} EXECUTE FUNCTION ichido.test_note()`,
}

const COLUMNS = {
  sqlite: `SELECT t.name AS table_name, c.name AS column_name FROM sqlite_schema t, pragma_table_info(t.name) c
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name <> 'test_changes'`,
  postgres: `SELECT table_name::text, column_name::text FROM information_schema.columns
    WHERE table_schema = 'ichido' AND table_name <> 'test_changes'
      AND table_name IN (SELECT tablename FROM pg_tables WHERE schemaname = 'ichido')`,
}

async function tables(store: Store): Promise<Map<string, string[]>> {
  const found = new Map<string, string[]>()
  for (const row of await sql(store, COLUMNS[store.engine])) {
    const table = text(row, 'table_name')
    found.set(table, [...(found.get(table) ?? []), text(row, 'column_name')])
  }
  return found
}
