import type { SqlValue } from '../../statement.ts'

/** Which parameters of a statement are arrays of texts: it says so itself, `$3::text[]`. */
export function textArraysOf(statement: string): ReadonlySet<number> {
  return new Set(Array.from(statement.matchAll(/\$(\d+)::text\[\]/g), ([, place]) => Number(place)))
}

/**
 * One array for each column. Texts go as bytes: in a literal each would be escaped here and read letter by letter there,
 * 4 µs and 3 µs of a submit.
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

/** A text in quotes: to find out which could go without takes longer than they do. */
function element(value: SqlValue): string {
  return typeof value === 'string' ? `"${value.replace(/["\\]/g, '\\$&')}"` : String(value)
}

const TEXT_OID = 25
const HEAD_BYTES = 20
const LENGTH_BYTES = 4
const NULL_LENGTH = -1

/** As array_recv reads it: dimensions, whether there are nulls, type, count, first index; then length and bytes of each. */
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
