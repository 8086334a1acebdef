// A statement is SQL text, once for each engine where they differ. Tables are written `ichido.name`, parameters `$name`, and
// `now_ms()` is the store's own clock. `by_key(r.job_id, t.job_id)` means that they are equal, and that `r` is looked up by its
// key: `ready` and `held` are often empty when they are analyzed, and soon have many rows.
export const BY_KEY = /\bby_key\((?<key>[\w.]+), (?<value>[\w.]+)\)/g

export type SqlValue = string | number | boolean | null

export type Row = Readonly<Record<string, SqlValue>>

/** As the engines run it: a parameter is `$1` and so on. */
export interface Statement {
  /** Unique, because PostgreSQL prepares a statement under its name. Empty for text that is built when it is needed. */
  readonly name: string
  readonly postgres: string
  /** Several texts run one after the other with the same parameters. The answer has the rows of the last text. */
  readonly sqlite: readonly string[]
}

type Text = string | { postgres: string; sqlite: string | string[] }

/** The type of a parameter or a column. A name with a question mark also allows null. */
export type SqlType =
  | 'text'
  | 'text?'
  | 'integer'
  | 'integer?'
  | 'flag'
  | OneOf<string>
  | PassOn<string>
  | Json<unknown>

type OneOf<T extends string> = { readonly oneOf: readonly T[] }
/** For a column that is only passed on: during an upgrade a newer node may write a value that this node does not know. */
type PassOn<T extends string> = { readonly passOn: readonly T[] }
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
          : T extends OneOf<infer V> | PassOn<infer V>
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

export type RowOf<S> = S extends TypedStatement<Types, infer R> ? Values<R> : never
export type ParamsOf<S> = S extends TypedStatement<infer P, Types> ? Values<P> : never

export function statement<const P extends Types, const R extends Types>(
  name: string,
  { params, row, ...text }: { params: P; row: R } & ({ sql: string } | Exclude<Text, string>),
): TypedStatement<P, R> {
  const { postgres, sqlite } = textsOf('sql' in text ? text.sql : text)
  const names = Object.keys(params)
  const numbered = (one: string) => withNumbers(name, one, names)
  const made = { name, postgres: numbered(postgres), sqlite: sqlite.map(numbered), params, row }
  register(made)
  return made
}

function textsOf(text: Text): { postgres: string; sqlite: string[] } {
  const { postgres, sqlite } = typeof text === 'string' ? { postgres: text, sqlite: text } : text
  return { postgres, sqlite: typeof sqlite === 'string' ? [sqlite] : sqlite }
}

/** `$user_id` becomes `$1` when it is the first of the names. */
function withNumbers(statement: string, text: string, names: readonly string[]): string {
  return text.replaceAll(/\$([a-z]\w*)/g, (_, name: string) => {
    const place = names.indexOf(name) + 1
    if (place === 0) throw new Error(`${statement} has no parameter $${name}`)
    return `$${place}`
  })
}

const named = new Map<string, Statement>()

/** Two texts under one name would fail late and seldom: only on a connection that has prepared the other text. */
function register(made: Statement): void {
  const { name, postgres } = made
  if ((named.get(name)?.postgres ?? postgres) !== postgres) throw new Error(`Two statements are named ${name}`)
  named.set(name, made)
}

/** All statements of the modules that are loaded. */
export function allStatements(): Statement[] {
  return [...named.values()]
}

/** Text that is built when it is needed. It has no name, and its parameters are written `$1` and so on. */
export function unnamed(text: Text): Statement {
  return { name: '', ...textsOf(text) }
}

/**
 * A command yields steps to its engine. `query` runs a statement once. `each` runs it for every row of parameters: SQLite in a
 * loop, PostgreSQL at once, with `$n` bound to the array of the rows' n-th values. `inTurn` is for the loop of SQLite: it gets
 * the answer of the row before, and changes the parameters of a row; null ends the loop.
 */
export type Step =
  | { kind: 'query'; statement: Statement; params: readonly SqlValue[] }
  | { kind: 'each'; statement: Statement; rows: readonly (readonly SqlValue[])[]; inTurn?: InTurn | undefined }

type InTurn = (row: readonly SqlValue[], answerBefore: readonly Row[]) => readonly SqlValue[] | null

/** The body of a command: it yields steps, gets their rows, and never awaits. */
export type Work<T> = Generator<Step, T, Row[]>

export function* query<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  params: Values<P>,
): Work<Values<R>[]> {
  return readRows(statement, yield { kind: 'query', statement, params: inOrder(statement, params) })
}

export function* one<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  params: Values<P>,
): Work<Values<R> | undefined> {
  return (yield* query(statement, params))[0]
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

/** For text that is built when it is needed. */
export function* select<R extends Types>(row: R, text: Text, params: readonly SqlValue[]): Work<Values<R>[]> {
  return readRows({ row }, yield* queryText(text, ...params))
}

/** The rows as they come, for tables whose columns are known only when the text runs. */
export function* queryText(text: Text, ...params: readonly SqlValue[]): Work<Row[]> {
  return yield { kind: 'query', statement: unnamed(text), params }
}

export function* each<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  rows: readonly Values<P>[],
  inTurn?: (params: Values<P>, answerBefore: readonly Values<R>[]) => Values<P> | null,
): Work<Values<R>[]> {
  if (rows.length === 0) return []
  const step = eachStep(statement, rows)
  if (inTurn === undefined) return readRows(statement, yield step)
  let place = 0
  const next: InTurn = (_, before) => {
    const params = rows[place++]
    const changed = params && inTurn(params, readRows(statement, before))
    return changed ? inOrder(statement, changed) : null
  }
  return readRows(statement, yield { ...step, inTurn: next })
}

/** The same as `query`, as a step for a fast path. */
export function queryStep<P extends Types, R extends Types>(statement: TypedStatement<P, R>, params: Values<P>): Step {
  return { kind: 'query', statement, params: inOrder(statement, params) }
}

/** The same as `each`, as a step for a fast path. */
export function eachStep<P extends Types, R extends Types>(
  statement: TypedStatement<P, R>,
  rows: readonly Values<P>[],
): Extract<Step, { kind: 'each' }> {
  return { kind: 'each', statement, rows: rows.map((row) => inOrder(statement, row)) }
}

function inOrder<P extends Types>({ params }: { readonly params: P }, named: Values<P>): SqlValue[] {
  const values: SqlValue[] = []
  for (const name in params) values.push(named[name] as SqlValue)
  return values
}

/** Checks rows against their columns. Each row keeps its object: a new one would cost a copy of every value. */
export function readRows<R extends Types>({ row: types }: { readonly row: R }, rows: readonly Row[]): Values<R>[] {
  for (const row of rows as Record<string, SqlValue>[]) {
    for (const column in types) {
      const value = row[column]
      const read = readValue(value, types[column], column)
      if (read !== value) row[column] = read
    }
  }
  return rows as unknown as Values<R>[]
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
      } else if ('passOn' in type) {
        if (typeof value === 'string') return value
      } else if (typeof value === 'string' || value === null) {
        return type.json(value === null ? null : JSON.parse(value)) as SqlValue
      } else if (typeof value === 'object') {
        // `inTurn` has read the row before.
        return value
      }
  }
  throw new TypeError(`Column ${column} does not hold ${typeof type === 'string' ? type : 'one of its values'}`)
}

const selectNow = statement('now', { params: {}, row: { now: 'integer' }, sql: 'SELECT now_ms() AS now' })

export function* now(): Work<number> {
  return (yield* exactlyOne(selectNow, {})).now
}
