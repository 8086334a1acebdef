import { createHash } from 'node:crypto'
import { EVENTS_TOLD } from '../events/event-sources.sql.ts'
import { queryText, type Row, select, unnamed, type Work } from '../statement.ts'

/** A table with the same name, columns and primary key on every engine. */
export interface Table {
  name: string
  columns: readonly string[]
  primaryKey: readonly string[]
}

/** The values of a row, in the order of the columns. A flag is 0 or 1 on every engine. */
export type Values = readonly (string | number | null)[]

const PAGE_ROWS_MAX = 1_000
const PAGE_ROWS_FIRST = 50
/** Payloads and results have up to 4 MB, so the size of a page depends on the rows before it. */
const PAGE_BYTES = 4 * 1024 * 1024

/** Reads all rows in pages. An empty table has no page. */
export function* readTable(
  table: Table,
  take: (rows: Values[]) => void,
  rowsMax = Number.POSITIVE_INFINITY,
): Work<void> {
  let left = rowsMax
  for (const source of sourcesOf(table)) {
    yield* readSource(table, source, left, (rows) => {
      left -= rows.length
      take(rows)
    })
  }
}

/** A table, or on PostgreSQL a part of its rows. The columns of the key give the order of the pages. */
interface Source {
  from: { postgres: string; sqlite: string }
  key: readonly string[]
}

/** On PostgreSQL some events have no row of their own. In a backup every event has one, so that each engine can restore it. */
function sourcesOf({ name, primaryKey }: Table): Source[] {
  const table = `ichido.${name}`
  const own = { from: { postgres: table, sqlite: table }, key: primaryKey }
  if (name !== 'events') return [own]
  const told = EVENTS_TOLD.map((events) => ({
    from: { postgres: `(${events}) t`, sqlite: `(SELECT 0 AS run_no, e.* FROM ${table} e WHERE false) t` },
    key: ['job_id', 'run_no'],
  }))
  return [own, ...told]
}

function* readSource(table: Table, { from, key }: Source, rowsMax: number, take: (rows: Values[]) => void): Work<void> {
  const order = key.map(quoted).join(', ')
  const marks = key.map((_, i) => `$${i + 2}`).join(', ')
  const columns = [...new Set([...table.columns, ...key])].map(quoted).join(', ')
  const page = (table: string, place: string) => `SELECT ${columns} FROM ${table} ${place} ORDER BY ${order} LIMIT $1`
  const both = (place: string) => ({ postgres: page(from.postgres, place), sqlite: page(from.sqlite, place) })
  const [first, next] = [both(''), both(`WHERE (${order}) > (${marks})`)]

  let last: Row | undefined
  let limit = PAGE_ROWS_FIRST
  for (let left = rowsMax; left > 0; ) {
    const count = Math.min(limit, left)
    const place = key.map((column) => last?.[column] ?? null)
    const rows = yield* last === undefined ? queryText(first, count) : queryText(next, count, ...place)
    if (rows.length === 0) return
    const page = rows.map((row) => table.columns.map((column) => plain(row, column)))
    take(page)
    if (rows.length < count) return
    left -= rows.length
    last = rows.at(-1)
    limit = rowsFitting(page)
  }
}

/** Inserts rows unchanged. */
export function* insertRows(table: Table, pages: Iterable<Values[]>): Work<void> {
  const types = new Map((yield* columnTypes(table)).map(({ name, type }) => [name, type]))
  const columns = table.columns.map(quoted).join(', ')
  const arrays = table.columns.map((column, i) => `$${i + 1}::${types.get(column)}[]`).join(', ')
  const marks = table.columns.map((_, i) => `$${i + 1}`).join(', ')
  const insert = unnamed({
    postgres: `INSERT INTO ichido.${table.name} (${columns}) SELECT * FROM unnest(${arrays})`,
    sqlite: `INSERT INTO ichido.${table.name} (${columns}) VALUES (${marks})`,
  })
  for (const rows of pages) yield { kind: 'each', statement: insert, rows }
}

export function* emptyTable(table: Table): Work<void> {
  yield* queryText(`DELETE FROM ichido.${table.name}`)
}

function columnTypes({ name }: Table) {
  const text = {
    postgres: `SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute
      WHERE attrelid = 'ichido.${name}'::regclass AND attnum > 0 AND NOT attisdropped`,
    sqlite: `SELECT name, type FROM pragma_table_info('${name}')`,
  }
  return select({ name: 'text', type: 'text' }, text, [])
}

function rowsFitting(page: readonly Values[]): number {
  const bytes = page.reduce((sum, row) => sum + bytesOf(row), 0)
  return Math.max(1, Math.min(PAGE_ROWS_MAX, Math.floor((PAGE_BYTES * page.length) / (bytes + 1))))
}

export function bytesOf(row: Values): number {
  return row.reduce<number>((sum, value) => sum + (typeof value === 'string' ? value.length : 8), 0)
}

export function plain(row: Readonly<Record<string, unknown>>, column: string): string | number | null {
  const value = row[column]
  if (typeof value === 'boolean') return Number(value)
  if (value === null || typeof value === 'string' || typeof value === 'number') return value
  throw new TypeError(`A backup cannot hold the ${typeof value} in the column ${column}`)
}

export function quoted(name: string): string {
  return `"${name}"`
}

export type TableSum = { rows: number; sum: string }

/** Shows whether two tables have the same rows, in any order: the sum of the rows' hashes. */
export class TableDigest {
  #rows = 0
  #sum = 0n

  add(rows: readonly Values[]): void {
    for (const row of rows) {
      const hash = createHash('sha256').update(JSON.stringify(row)).digest('hex')
      this.#sum = BigInt.asUintN(256, this.#sum + BigInt(`0x${hash}`))
    }
    this.#rows += rows.length
  }

  get value(): TableSum {
    return { rows: this.#rows, sum: this.#sum.toString(16) }
  }
}

export function sameRows(a: TableSum | undefined, b: TableSum | undefined): boolean {
  return a !== undefined && b !== undefined && a.rows === b.rows && a.sum === b.sum
}
