/**
 * A statement is SQL text, once for each engine where they differ. Conventions of both texts:
 * tables are written `ichido.name`, parameters `$1` …, and `now_ms()` is the store's own clock.
 */
export type SqlValue = string | number | boolean | null

export type Row = Readonly<Record<string, SqlValue>>

export interface Statement {
  /** Unique: PostgreSQL prepares under it. Empty for text that is put together when it is needed. */
  readonly name: string
  readonly postgres: string
  /** Several texts run one after the other with the same parameters; the rows of the last are the answer. */
  readonly sqlite: readonly string[]
}

export function statement(name: string, text: string | { postgres: string; sqlite: string | string[] }): Statement {
  const { postgres, sqlite } = typeof text === 'string' ? { postgres: text, sqlite: text } : text
  claimName(name, postgres)
  return { name, postgres, sqlite: typeof sqlite === 'string' ? [sqlite] : sqlite }
}

const textOf = new Map<string, string>()

/** A second text under a name is refused by the connection that has prepared the first, and by no other: seldom, and late. */
function claimName(name: string, postgres: string): void {
  if (name === '') return
  if ((textOf.get(name) ?? postgres) !== postgres) throw new Error(`Two statements are named ${name}`)
  textOf.set(name, postgres)
}

/**
 * What a command asks of its engine. `query` runs a statement once. `each` runs it for every row of parameters:
 * SQLite in a loop, PostgreSQL at once, with `$n` bound to the array of the rows' n-th values. `inTurn`: in the loop, what
 * becomes of a row once the one before it has been answered; null ends the loop.
 */
export type Step =
  | { kind: 'query'; statement: Statement; params: readonly SqlValue[] }
  | { kind: 'each'; statement: Statement; rows: readonly (readonly SqlValue[])[]; inTurn?: InTurn | undefined }

export type InTurn = (row: readonly SqlValue[], answerBefore: readonly Row[]) => readonly SqlValue[] | null

/** The body of a command: it yields steps, is handed their rows, and never awaits. */
export type Work<T> = Generator<Step, T, Row[]>

export function* query(statement: Statement, ...params: readonly SqlValue[]): Work<Row[]> {
  return yield { kind: 'query', statement, params }
}

export function* one(statement: Statement, ...params: readonly SqlValue[]): Work<Row | undefined> {
  const rows = yield* query(statement, ...params)
  return rows[0]
}

export function* each(statement: Statement, rows: readonly (readonly SqlValue[])[], inTurn?: InTurn): Work<Row[]> {
  return rows.length === 0 ? [] : yield { kind: 'each', statement, rows, inTurn }
}

const selectNow = statement('now', 'SELECT now_ms() AS now')

export function* now(): Work<number> {
  const row = yield* one(selectNow)
  return integer(row, 'now')
}

// Columns are read with the type that the caller expects of them; anything else is a bug that must not go on.

export function text(row: Row | undefined, column: string): string {
  const value = row?.[column]
  if (typeof value !== 'string') throw new TypeError(`Column ${column} is not text`)
  return value
}

export function textOrNull(row: Row | undefined, column: string): string | null {
  return row?.[column] == null ? null : text(row, column)
}

export function integer(row: Row | undefined, column: string): number {
  const value = row?.[column]
  if (typeof value !== 'number') throw new TypeError(`Column ${column} is not a number`)
  return value
}

export function integerOrNull(row: Row | undefined, column: string): number | null {
  return row?.[column] == null ? null : integer(row, column)
}

export function flag(row: Row | undefined, column: string): boolean {
  const value = row?.[column]
  return value === true || value === 1
}
