import type { SqlValue } from '../../statement.ts'

/** The numbers of the parameters that are arrays of texts, such as `$3::text[]`. */
export function textArraysOf(statement: string): ReadonlySet<number> {
  return new Set(Array.from(statement.matchAll(/\$(\d+)::text\[\]/g), ([, place]) => Number(place)))
}

/**
 * One array for each column. Texts are sent as bytes. In a literal, escaping them took 4 µs of a submit, and parsing them took
 * PostgreSQL 3 µs.
 */
export function toArrays(rows: readonly (readonly SqlValue[])[], texts: ReadonlySet<number>): (string | Buffer)[] {
  const width = rows[0]?.length ?? 0
  return Array.from({ length: width }, (_, column) => {
    const values = rows.map((row) => valueIn(row, column))
    return texts.has(column + 1) ? textArray(values) : `{${values.map(element).join(',')}}`
  })
}

function valueIn(row: readonly SqlValue[], column: number): SqlValue {
  const value = row[column]
  if (value === undefined) throw new TypeError('The rows of a statement are of different lengths')
  return value
}

/** A text is always quoted: to find out whether it needs quotes takes longer. */
function element(value: SqlValue): string {
  return typeof value === 'string' ? `"${value.replace(/["\\]/g, '\\$&')}"` : String(value)
}

const TEXT_OID = 25
const HEAD_BYTES = 20
const LENGTH_BYTES = 4
const NULL_LENGTH = -1

/** The format of array_recv: dimensions, a flag for nulls, type, count, first index; then length and bytes of each value. */
function textArray(values: readonly SqlValue[]): Buffer {
  let bytes = HEAD_BYTES + LENGTH_BYTES * values.length
  let nulls = 0
  for (const value of values) {
    if (value === null) nulls = 1
    else bytes += Buffer.byteLength(String(value))
  }
  const array = Buffer.allocUnsafe(bytes)
  let at = 0
  for (const number of [1, nulls, TEXT_OID, values.length, 1]) at = array.writeInt32BE(number, at)
  for (const value of values) {
    const length = value === null ? NULL_LENGTH : array.write(String(value), at + LENGTH_BYTES)
    at = array.writeInt32BE(length, at) + Math.max(0, length)
  }
  return array
}
