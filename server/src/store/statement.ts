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

type Text = string | { postgres: string; sqlite: string | string[] }

/** What a parameter or a column holds. A name with a question mark may be null. */
export type SqlType = 'text' | 'text?' | 'integer' | 'integer?' | 'flag' | OneOf<string> | Json<unknown>

type OneOf<T extends string> = { readonly oneOf: readonly T[] }
type Json<T> = { readonly json: (value: unknown) => T }

type Types = Readonly<Record<string, SqlType>>

type ValueOf<T extends SqlType> = T extends 'text'
  ? string
  : T extends 'text?'
    ? string | null
    : T extends 'integer'
      ? number
      : T extends 'integer?'
        ? number | null
        : T extends 'flag'
          ? boolean
          : T extends OneOf<infer V>
            ? V
            : T extends Json<infer V>
              ? V
              : never

export type Values<T extends Types> = { readonly [Name in keyof T]: ValueOf<T[Name]> }

/** A statement whose parameters and columns have names and types. In its text a parameter is written `$name`. */
export interface TypedStatement<P extends Types, R extends Types> extends Statement {
  readonly params: P
  readonly row: R
}

/** A statement that has not declared its parameters: they are given by their places. */
type Positional = Statement & { readonly params?: never }

export type RowOf<S> = S extends TypedStatement<Types, infer R> ? Values<R> : never
export type ParamsOf<S> = S extends TypedStatement<infer P, Types> ? Values<P> : never

type Typed<P extends Types, R extends Types> = { params: P; row: R } & (
  | { sql: string }
  | { postgres: string; sqlite: string | string[] }
)

export function statement<const P extends Types, const R extends Types>(
  name: string,
  typed: Typed<P, R>,
): TypedStatement<P, R>
export function statement(name: string, text: Text): Positional
export function statement(name: string, given: Text | Typed<Types, Types>): Statement {
  const text = typeof given !== 'string' && 'sql' in given ? given.sql : given
  const { postgres, sqlite } = typeof text === 'string' ? { postgres: text, sqlite: text } : text
  const texts = typeof sqlite === 'string' ? [sqlite] : sqlite
  const isTyped = typeof given !== 'string' && 'params' in given
  const names = isTyped ? Object.keys(given.params) : []
  const numbered = (one: string) => (isTyped ? withNumbers(name, one, names) : one)
  const made = { name, postgres: numbered(postgres), sqlite: texts.map(numbered) }
  claimName(name, made.postgres)
  return isTyped ? Object.assign(made, { params: given.params, row: given.row }) : made
}

/** `$user_id` becomes `$1` when it is the first of the names. */
function withNumbers(statement: string, text: string, names: readonly string[]): string {
  return text.replaceAll(/\$([a-z]\w*)/g, (_, name: string) => {
    const place = names.indexOf(name) + 1
    if (place === 0) throw new Error(`${statement} has no parameter $${name}`)
    return `$${place}`
  })
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

export function query<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  params: Values<P>,
): Work<Values<R>[]>
export function query(statement: Positional, ...params: readonly SqlValue[]): Work<Row[]>
export function* query(statement: Statement, ...params: readonly unknown[]): Work<Row[]> {
  if (!isTyped(statement)) return yield { kind: 'query', statement, params: params as readonly SqlValue[] }
  const [named] = params as [Values<Types>]
  return checked(statement, yield { kind: 'query', statement, params: inOrder(statement, named) })
}

export function one<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  params: Values<P>,
): Work<Values<R> | undefined>
export function one(statement: Positional, ...params: readonly SqlValue[]): Work<Row | undefined>
export function* one(statement: Statement, ...params: readonly unknown[]): Work<Row | undefined> {
  const rows = yield* query(statement as Positional, ...(params as readonly SqlValue[]))
  return rows[0]
}

/** For a statement that always answers with a row. */
export function* exactlyOne<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  params: Values<P>,
): Work<Values<R>> {
  const row = yield* one(statement, params)
  if (row === undefined) throw new Error(`${statement.name} has not answered with a row`)
  return row
}

/** For text that is put together when it is needed: its parameters are written `$1` and so on. */
export function* select<R extends Types>(row: R, text: string, params: readonly SqlValue[]): Work<Values<R>[]> {
  return readRows({ row }, yield { kind: 'query', statement: statement('', text), params })
}

/** In the loop of SQLite: a row's parameters once the row before it has been answered. Null ends the loop. */
export type NamedInTurn<P extends Types, R extends Types> = (
  params: Values<P>,
  answerBefore: readonly Values<R>[],
) => Values<P> | null

export function each<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  rows: readonly Values<P>[],
  inTurn?: NamedInTurn<P, R>,
): Work<Values<R>[]>
export function each(statement: Positional, rows: readonly (readonly SqlValue[])[], inTurn?: InTurn): Work<Row[]>
export function* each(
  statement: Statement,
  rows: readonly (readonly SqlValue[])[] | readonly Values<Types>[],
  inTurn?: InTurn | NamedInTurn<Types, Types>,
): Work<Row[]> {
  if (rows.length === 0) return []
  if (!isTyped(statement)) {
    return yield {
      kind: 'each',
      statement,
      rows: rows as readonly (readonly SqlValue[])[],
      inTurn: inTurn as InTurn | undefined,
    }
  }
  const named = rows as readonly Values<Types>[]
  const step = eachStep(statement, named)
  if (inTurn === undefined) return checked(statement, yield step)
  let place = 0
  const next: InTurn = (_, before) => {
    const params = named[place++]
    const changed = params && (inTurn as NamedInTurn<Types, Types>)(params, readRows(statement, [...before]))
    return changed ? inOrder(statement, changed) : null
  }
  return checked(statement, yield { ...step, inTurn: next })
}

/** The same as a step, for a fast path. */
export function eachStep<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  rows: readonly Values<P>[],
): Extract<Step, { kind: 'each' }> {
  return { kind: 'each', statement, rows: rows.map((row) => inOrder(statement, row)) }
}

function isTyped(statement: Statement): statement is TypedStatement<Types, Types> {
  return 'params' in statement
}

function inOrder({ params }: TypedStatement<Types, Types>, named: Values<Types>): SqlValue[] {
  const values: SqlValue[] = []
  for (const name in params) values.push(named[name] as SqlValue)
  return values
}

/** Checks rows against the statement's columns. Each row keeps its object: to make others would cost a copy of every value. */
export function readRows<R extends Types>(statement: { readonly row: R }, rows: readonly Row[]): Values<R>[] {
  for (const row of rows as Record<string, SqlValue>[]) {
    for (const column in statement.row) row[column] = readValue(row[column], statement.row[column], column)
  }
  return rows as unknown as Values<R>[]
}

/** The same where both kinds of statements go through. */
function checked(statement: TypedStatement<Types, Types>, rows: readonly Row[]): Row[] {
  return readRows(statement, rows) as unknown as Row[]
}

function readValue(value: SqlValue | undefined, type: SqlType | undefined, column: string): SqlValue {
  switch (type) {
    case 'text':
      if (typeof value === 'string') return value
      break
    case 'integer':
      if (typeof value === 'number') return value
      break
    case 'text?':
      if (typeof value === 'string' || value === null) return value
      break
    case 'integer?':
      if (typeof value === 'number' || value === null) return value
      break
    case 'flag':
      // SQLite has no booleans.
      if (typeof value === 'boolean' || value === 0 || value === 1) return value === true || value === 1
      break
    case undefined:
      break
    default:
      if ('oneOf' in type) {
        if (typeof value === 'string' && type.oneOf.includes(value)) return value
      } else if (typeof value === 'string' || value === null) {
        return type.json(value === null ? null : JSON.parse(value)) as SqlValue
      } else if (typeof value === 'object') {
        // It was read before, for the row that came after it.
        return value
      }
  }
  throw new TypeError(`Column ${column} does not hold ${typeof type === 'string' ? type : 'one of its values'}`)
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

/** A page of a list. `found` has one entry more than the page if another page follows. */
export function pageOf<Entry, Place>(found: readonly Entry[], limit: number, placeOf: (entry: Entry) => Place) {
  const rows = found.slice(0, limit)
  const last = rows.at(-1)
  return { rows, next: found.length > limit && last !== undefined ? placeOf(last) : null }
}
