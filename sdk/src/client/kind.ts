import {
  BACKOFF_LIMITS,
  DEFAULT_QUEUE,
  JOB_LIMITS,
  JSON_MAX_DEPTH,
  NAME_PATTERN,
  NAME_RULE,
  type NumberLimits,
  type StageShape,
} from '../protocol/index.ts'
import { InvalidValue } from './errors.ts'

/** The maximum length of a path in a message. */
const PATH_MAX = 300
const REMEDIES: Readonly<Record<string, string>> = {
  Map: 'use Object.fromEntries(map)',
  Set: 'use an array',
  Promise: 'await it',
}

/** The needed part of Standard Schema (standardschema.dev), which zod, valibot, arktype and others implement. */
export interface Schema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}

type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly SchemaIssue[] }

interface SchemaIssue {
  readonly message: string
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** The wait before retry n is min(cap, base · 2^n) seconds, minus a random part. */
export interface Backoff {
  /** The wait before the first retry; default 10. */
  baseSeconds?: number
  /** The longest wait; default 300. */
  capSeconds?: number
  /** The random part of a wait, from 0 to 1; default 0.1. */
  jitter?: number
}

/** The options of `defineKind`. */
export interface KindOptions<P extends Schema | undefined, R extends Schema | undefined> {
  /** The schema of the payload; it is checked before the submission and before the handler. */
  payload?: P
  /** The schema of the result; it is checked after the handler and by `job.result()`. */
  result?: R
  /** The queue of its jobs; default `default`. */
  queue?: string
  /** The highest priority goes first; default 0. */
  priority?: number
  /** How many runs of a job may start and fail; default 4. */
  maxAttempts?: number
  /** The wait before a retry. */
  backoff?: Backoff
  /** The time limit of one run; default: none. */
  timeoutSeconds?: number
  /** How long a lease lasts without a heartbeat; default 60. */
  leaseTtlSeconds?: number
  /** How long the job waits for a worker whose lease expired; default 60. */
  continuationSeconds?: number
  /** A group of kinds for the events of its jobs; default: the kind. */
  domain?: string
  /** The range of seq numbers of each stage, or the name of the preset; default: one open stage. */
  stages?: StageShape[] | 'eco2'
  /** Whether all attempts share one count (`job`, the default of the preset) or each attempt counts from the start (`attempt`, the default). */
  seqScope?: 'job' | 'attempt'
}

/** A kind of work, with the types of its payload and result before and after their schemas transform them. */
export interface Kind<PayloadIn = unknown, PayloadOut = PayloadIn, Result = unknown, ResultIn = Result> {
  /** The name of the kind. */
  readonly name: string
  /** The queue of its jobs. */
  readonly queue: string
  /** The options of `defineKind`. */
  readonly options: KindOptions<Schema | undefined, Schema | undefined>
  /** Only for the type checker. */
  readonly types?: { payloadIn: PayloadIn; payloadOut: PayloadOut; result: Result; resultIn: ResultIn }
}

/** The payload that a handler of the kind gets. */
export type PayloadOf<K extends Kind> = NonNullable<K['types']>['payloadOut']
/** The value that `job.result()` returns for a job of the kind. */
export type ResultOf<K extends Kind> = NonNullable<K['types']>['result']

type In<S> = S extends Schema<infer Input, infer _> ? Input : unknown
type Out<S> = S extends Schema<infer _, infer Output> ? Output : unknown

/**
 * Defines a kind of job for `submit` and `handle`. Throws if a name or a number is not valid.
 *
 * @example
 * const resize = defineKind('resize', { payload: z.object({ url: z.url() }), maxAttempts: 3 })
 */
export function defineKind<P extends Schema | undefined = undefined, R extends Schema | undefined = undefined>(
  name: string,
  options: KindOptions<P, R> = {},
): Kind<In<P>, Out<P>, Out<R>, In<R>> {
  const kind = { name, queue: options.queue ?? DEFAULT_QUEUE, options }
  checkKind(kind)
  return kind
}

/** A bare name is not checked here; the server checks it. */
export function toKind(kind: Kind | string): Kind {
  return typeof kind === 'string' ? { name: kind, queue: DEFAULT_QUEUE, options: {} } : kind
}

/** For callers without type checks: an invalid kind would poll in vain, and break the polls of other kinds. */
export function checkKind(kind: Kind): void {
  if (typeof kind?.name !== 'string' || typeof kind.options !== 'object') {
    throw new TypeError(`A kind must come from defineKind(), but it is ${kind === null ? 'null' : typeof kind}`)
  }
  const { name, queue, options } = kind
  const { domain = name, backoff = {} } = options
  for (const [option, given] of Object.entries({ name, queue, domain })) {
    if (typeof given !== 'string' || !NAME_PATTERN.test(given)) throw new TypeError(`${option} ${NAME_RULE}`)
  }
  checkNumbers(JOB_LIMITS, options, '')
  checkNumbers(BACKOFF_LIMITS, backoff, 'backoff.')
}

function checkNumbers<Name extends string>(
  limits: Record<Name, NumberLimits>,
  given: NoInfer<{ readonly [name in Name]?: number }>,
  path: string,
): void {
  for (const name in limits) {
    const { min, max, whole, above = false } = limits[name]
    const number = given[name]
    if (number == null) continue
    const inRange = (above ? number > min : number >= min) && number <= max
    if (inRange && (whole ? Number.isInteger(number) : Number.isFinite(number))) continue
    const range = above ? `above ${min}, at most ${max}` : `from ${min} to ${max}`
    throw new RangeError(`${path}${name} must be a ${whole ? 'whole ' : ''}number ${range}`)
  }
}

/**
 * The value itself if there is no schema; otherwise the value that the schema returns. It is a promise only if the schema answers
 * with one: a batch checks a thousand values.
 */
export function checkValue(schema: Schema | undefined, value: unknown, what: string): unknown {
  const result = schema?.['~standard'].validate(value) ?? { value }
  const read = (found: SchemaResult<unknown>) => {
    if (found.issues === undefined) return found.value
    const [issue] = found.issues
    const path = (issue?.path ?? []).map((part) => (typeof part === 'object' ? part.key : part))
    throw new InvalidValue(`${pathText(what, path)}: ${issue?.message ?? 'is not valid'}`)
  }
  // It may be another library's promise.
  return 'then' in result ? Promise.resolve(result).then(read) : read(result)
}

/** Checks a payload before it is sent; the handler's side applies the schema's transformations. */
export function checkPayload(kind: Kind | undefined, payload: unknown): void | Promise<void> {
  const checked = checkValue(kind?.options.payload, payload, 'payload')
  if (checked instanceof Promise) return checked.then(() => requireJson(payload, 'payload'))
  requireJson(payload, 'payload')
}

/** The path of a member, as code would write it: `result.items[3].when`. */
export function pathText(what: string, path: readonly PropertyKey[]): string {
  const text = path.reduce<string>((before, part) => {
    if (/^\d+$/.test(String(part))) return `${before}[${String(part)}]`
    return /^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(String(part))
      ? `${before}.${String(part)}`
      : `${before}[${JSON.stringify(String(part))}]`
  }, what)
  return text.length > PATH_MAX ? `${text.slice(0, PATH_MAX - 1)}…` : text
}

/**
 * Throws an InvalidValue for a value that JSON would silently change: `JSON.stringify` turns a Map into `{}`, NaN and a hole in
 * an array into null, and leaves functions out. A member that is undefined is allowed, because it is left out. An object with
 * `toJSON` is replaced by what that returns, so a Date becomes a string.
 */
export function requireJson(value: unknown, what: string): void {
  const path: PropertyKey[] = []
  const why = findProblem(value, path, [])
  if (why !== null) throw new InvalidValue(`${pathText(what, path)} ${why}`)
}

/** Leaves `path` at the place of the problem. */
function findProblem(given: unknown, path: PropertyKey[], parents: object[]): string | null {
  const value = asJson(given, path.at(-1))
  if (typeof value !== 'object' || value === null) return primitiveProblem(value)
  const why = objectProblem(value, parents)
  if (why !== null) return why
  parents.push(value)
  // `entries()` includes holes.
  const members: Iterable<[PropertyKey, unknown]> = Array.isArray(value) ? value.entries() : Object.entries(value)
  for (const [name, member] of members) {
    path.push(name)
    const problem = member === undefined ? undefinedProblem(value) : findProblem(member, path, parents)
    if (problem !== null) return problem
    path.pop()
  }
  parents.pop()
  return null
}

function undefinedProblem(parent: object): string | null {
  return Array.isArray(parent) ? 'is undefined, which an array in JSON cannot hold: use null' : null
}

/** Applies `toJSON` like `JSON.stringify`. An invalid Date stays, because it would become null. */
function asJson(value: unknown, name: PropertyKey | undefined): unknown {
  if (value === null || value === undefined) return value
  if (value instanceof Date && Number.isNaN(value.getTime())) return value
  const { toJSON } = value as { toJSON?: unknown }
  return typeof toJSON === 'function' ? toJSON.call(value, String(name ?? '')) : value
}

function primitiveProblem(value: unknown): string | null {
  switch (typeof value) {
    case 'bigint':
      return 'is a BigInt, which JSON cannot hold: use a string'
    case 'function':
    case 'symbol':
      return `is a ${typeof value}, which JSON cannot hold`
    case 'number':
      return Number.isFinite(value) ? null : `is ${value}, which JSON cannot hold: use null or a string`
    default:
      return null
  }
}

function objectProblem(value: object, parents: readonly object[]): string | null {
  if (parents.includes(value)) return 'is circular, which JSON cannot hold'
  if (parents.length === JSON_MAX_DEPTH) return `is nested more than ${JSON_MAX_DEPTH} levels deep`
  if (value instanceof Date) return 'is an invalid Date'
  if (Array.isArray(value) || isPlain(value)) return null
  const name = nameOf(value)
  return `is a ${name}, which JSON cannot hold: ${REMEDIES[name] ?? 'use a plain object or a toJSON()'}`
}

/** Also true for objects of another realm, and without a prototype. */
function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

function nameOf(value: object): string {
  const { name } = value.constructor ?? {}
  return typeof name === 'string' && name !== '' ? name : 'class instance'
}
