import {
  BACKOFF_LIMITS,
  JOB_LIMITS,
  NAME_PATTERN,
  NAME_RULE,
  type NumberLimits,
  type StageShape,
} from '../protocol/index.ts'
import { InvalidValue } from './errors.ts'
import { pathText, requireJson } from './json-value.ts'

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

/** The wait before retry n is min(cap, base · 2^n) seconds, less up to the part `jitter` of it at random; the defaults are 10, 300 and 0.1. */
export interface Backoff {
  baseSeconds?: number
  capSeconds?: number
  jitter?: number
}

export interface KindOptions<P extends Schema | undefined, R extends Schema | undefined> {
  payload?: P
  result?: R
  queue?: string
  priority?: number
  maxAttempts?: number
  backoff?: Backoff
  timeoutSeconds?: number
  leaseTtlSeconds?: number
  /** How long the job waits for a worker whose lease expired before another worker gets it. */
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
  readonly name: string
  readonly queue: string
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

/** Throws at once if a name or a number is not valid for a job. */
export function defineKind<P extends Schema | undefined = undefined, R extends Schema | undefined = undefined>(
  name: string,
  options: KindOptions<P, R> = {},
): Kind<In<P>, Out<P>, Out<R>, In<R>> {
  const kind = { name, queue: options.queue ?? 'default', options }
  checkKind(kind)
  return kind
}

/** Of a name alone nothing is checked here: its jobs are refused in their places. */
export function toKind(kind: Kind | string): Kind {
  return typeof kind === 'string' ? { name: kind, queue: 'default', options: {} } : kind
}

/** Also where types were not checked: what is no kind would ask for work in vain, and spoil what others ask for along with it. */
export function checkKind(kind: Kind): void {
  if (typeof kind?.name !== 'string' || typeof kind.options !== 'object') {
    throw new TypeError(`A kind must come from defineKind(), but it is ${kind === null ? 'null' : typeof kind}`)
  }
  const { name, queue, options } = kind
  const { domain = name, backoff = {} } = options
  for (const [what, given] of Object.entries({ name, queue, domain })) {
    if (typeof given !== 'string' || !NAME_PATTERN.test(given)) throw new TypeError(`${what} ${NAME_RULE}`)
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

/** Resolves to the value that the schema returns, or to the value itself if there is no schema. */
export async function checkValue(schema: Schema | undefined, value: unknown, what: string): Promise<unknown> {
  if (schema === undefined) return value
  const result = await schema['~standard'].validate(value)
  if (result.issues === undefined) return result.value
  const [issue] = result.issues
  const path = (issue?.path ?? []).map((part) => (typeof part === 'object' ? part.key : part))
  throw new InvalidValue(`${pathText(what, path)}: ${issue?.message ?? 'is not valid'}`)
}

/** Before it is sent, as it was given: the handler's side applies the schema's transformations. */
export async function checkPayload(kind: Kind | undefined, payload: unknown): Promise<void> {
  await checkValue(kind?.options.payload, payload, 'payload')
  requireJson(payload, 'payload')
}
