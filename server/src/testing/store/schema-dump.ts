import type { Store } from '../../store/port.ts'
import type { Row } from '../../store/statement.ts'
import { text } from './rows.ts'
import { sql } from './store.ts'

/** The schema as the engine reports it. The same schema gives the same text, in whatever order it was created. */
export function dumpSchema(store: Store): Promise<string> {
  return store.engine === 'sqlite' ? dumpSqlite(store) : dumpPostgres(store)
}

async function dumpSqlite(store: Store): Promise<string> {
  const rows = await sql(
    store,
    `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY tbl_name, CASE type WHEN 'table' THEN 0 ELSE 1 END, name`,
  )
  return rows.map((row) => `${oneIndent(text(row, 'sql'))};\n`).join('\n')
}

/** Migrations are written inside TypeScript, with varying indentation. */
function oneIndent(ddl: string): string {
  return ddl
    .split('\n')
    .map((line, i, lines) => (i === 0 || i === lines.length - 1 ? line.trim() : `  ${line.trim()}`))
    .join('\n')
}

async function dumpPostgres(store: Store): Promise<string> {
  const columns = await sql(
    store,
    `SELECT table_name::text, column_name || ' ' || data_type || CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END
        || coalesce(' DEFAULT ' || column_default, '') AS line
      FROM information_schema.columns WHERE table_schema = 'ichido' ORDER BY table_name, ordinal_position`,
  )
  const constraints = await sql(
    store,
    `SELECT c.conrelid::regclass::text AS table_name, 'CONSTRAINT ' || c.conname || ' ' || pg_get_constraintdef(c.oid) AS line
      FROM pg_constraint c WHERE c.connamespace = 'ichido'::regnamespace AND c.contype <> 'n' ORDER BY c.conname`,
  )
  const indexes = await sql(
    store,
    `SELECT tablename::text AS table_name, indexdef AS line FROM pg_indexes
      WHERE schemaname = 'ichido' AND indexname NOT IN (SELECT conname FROM pg_constraint) ORDER BY indexname`,
  )
  const options = await sql(
    store,
    `SELECT relname::text AS table_name, array_to_string(reloptions, ', ') AS line FROM pg_class
      WHERE relnamespace = 'ichido'::regnamespace AND reloptions IS NOT NULL ORDER BY relname`,
  )
  const of = (table: string, rows: readonly Row[]) =>
    rows.filter((row) => text(row, 'table_name').replace('ichido.', '') === table).map((row) => text(row, 'line'))
  const tables = [...new Set(columns.map((row) => text(row, 'table_name')))]
  return tables
    .map((table) => {
      const body = [...of(table, columns), ...of(table, constraints)].map((line) => `  ${line}`).join(',\n')
      const [storage] = of(table, options)
      const wanted = storage === undefined ? '' : ` WITH (${storage})`
      return [`CREATE TABLE ichido.${table} (\n${body}\n)${wanted}`, ...of(table, indexes)]
        .map((part) => `${part};\n`)
        .join('')
    })
    .join('\n')
}
