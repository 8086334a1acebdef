import type { Row } from '../../store/statement.ts'

// Columns of rows that a test reads with SQL of its own. Another type than the test expects fails the test.

export function text(row: Row | undefined, column: string): string {
  const value = row?.[column]
  if (typeof value !== 'string') throw new TypeError(`Column ${column} is not text`)
  return value
}

export function integer(row: Row | undefined, column: string): number {
  const value = row?.[column]
  if (typeof value !== 'number') throw new TypeError(`Column ${column} is not a number`)
  return value
}
