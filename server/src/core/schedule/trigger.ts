import type { Scalar } from '@ichido/sdk/protocol'
import { invalid, type Problem } from '../json/problem.ts'
import { findJsonProblem } from '../json/request-json.ts'
import { type Check, isMapOf, isObjectOf, isOneOf, isText } from '../json/stored-json.ts'
import { fieldName } from '../json/text.ts'

/** The triggers that make a job of a definition. */
export interface TriggerRule {
  topic: string
  /** The wanted values by path. */
  where: Readonly<Record<string, Scalar>>
  whenPaused: (typeof WHEN_PAUSED)[number]
}

export const WHEN_PAUSED = ['keep', 'skip'] as const

const isScalar: Check<Scalar> = (value): value is Scalar =>
  value === null || ['string', 'number', 'boolean'].includes(typeof value)

export const isTriggerRule = isObjectOf<TriggerRule>({
  topic: isText,
  where: isMapOf(isScalar),
  whenPaused: isOneOf(WHEN_PAUSED),
})

/**
 * A path names a value inside `data`: member names and array indices with dots between them, like `order.lines.0.sku`.
 * A backslash before a dot or a backslash makes it part of the name. The empty path is all of `data`.
 */
const PATH_LENGTH_MAX = 256
export const CONDITIONS_MAX = 16
const TAKE = '$from'

const NAME = String.raw`(?:[^.\\]|\\[.\\])+`
const PATH = new RegExp(`^(?:${NAME}(?:\\.${NAME})*)?$`, 's')
const NAMES = new RegExp(NAME, 'gs')

const namesOf = (path: string) => (path.match(NAMES) ?? []).map((name) => name.replace(/\\(.)/gs, '$1'))

/** The end of a sentence that begins with the field's name; null if the path is valid. */
export function pathProblem(path: string): string | null {
  if (path.length > PATH_LENGTH_MAX) return `must have at most ${PATH_LENGTH_MAX} characters`
  if (PATH.test(path)) return null
  return 'must be names with single dots between them; a backslash escapes a dot or a backslash'
}

type Taken = { found: true; value: unknown } | { found: false }

function take(data: unknown, path: string): Taken {
  let value = data
  for (const name of namesOf(path)) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return { found: false }
    // The length of an array is not part of the data.
    if (Array.isArray(value) && !/^\d+$/.test(name)) return { found: false }
    value = (value as Record<string, unknown>)[name]
  }
  return { found: true, value }
}

/** True if every condition holds. A missing path equals nothing, not even null. */
export function matches(rule: TriggerRule, topic: string, data: unknown): boolean {
  if (rule.topic !== topic) return false
  return Object.entries(rule.where).every(([path, wanted]) => {
    const taken = take(data, path)
    return taken.found && taken.value === wanted
  })
}

type Filled = { ok: true; payload: string } | { ok: false; reason: string; field: string | null }

/** Makes a job's payload: the template, with fields of `data` in place of each `{"$from": path}`. */
function fillPayload(template: string, data: unknown, bytesMax: number): Filled {
  if (!template.includes(TAKE)) return { ok: true, payload: template }
  let missing: string | null = null
  let takenChars = 0
  const filled = replaceTakes(JSON.parse(template), (path) => {
    const taken = take(data, path)
    if (!taken.found) missing ??= path
    // A template may take the same large field thousands of times: the result may be too large for a string.
    if (!taken.found || takenChars > bytesMax) return null
    takenChars += JSON.stringify(taken.value).length
    return taken.value
  })
  if (missing !== null) return { ok: false, reason: 'missing_field', field: missing }
  const tooLarge = { ok: false, reason: 'payload_too_large', field: null } as const
  if (takenChars > bytesMax) return tooLarge
  const payload = JSON.stringify(filled)
  if (Buffer.byteLength(payload) > bytesMax) return tooLarge
  // Two values of 64 levels may make a deeper one.
  if (findJsonProblem(payload) !== null) return { ok: false, reason: 'payload_too_deep', field: null }
  return { ok: true, payload }
}

function replaceTakes(value: unknown, take: (path: string) => unknown): unknown {
  if (Array.isArray(value)) return value.map((entry) => replaceTakes(entry, take))
  if (typeof value !== 'object' || value === null) return value
  if (TAKE in value && typeof value[TAKE] === 'string') return take(value[TAKE])
  return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, replaceTakes(entry, take)]))
}

/** True if jobs of this template need the data of a trigger. */
export function takesData(payload: unknown): boolean {
  return takesOf(payload, []).next().done === false
}

interface Take {
  field: string
  path: unknown
  /** True if its object has no other member. */
  alone: boolean
}

function* takesOf(value: unknown, at: readonly (string | number)[]): Generator<Take> {
  if (typeof value !== 'object' || value === null) return
  const isList = Array.isArray(value)
  if (!isList && TAKE in value) {
    yield { field: fieldName(['payload', ...at, TAKE]), path: value[TAKE], alone: Object.keys(value).length === 1 }
    return
  }
  for (const [name, entry] of Object.entries(value)) yield* takesOf(entry, [...at, isList ? Number(name) : name])
}

/** Says what is wrong with a definition's rule and template. */
export function templateProblem(payload: unknown, rule: TriggerRule | null, hasSchedule: boolean): Problem | null {
  for (const path of Object.keys(rule?.where ?? {})) {
    const problem = pathProblem(path)
    const field = fieldName(['on', 'where', path])
    if (problem !== null) return invalid(field, `${field} ${problem}`)
  }
  for (const taken of takesOf(payload, [])) {
    const problem = takeProblem(taken, rule, hasSchedule)
    if (problem !== null) return invalid(taken.field, `${taken.field} ${problem}`)
  }
  return null
}

function takeProblem({ path, alone }: Take, rule: TriggerRule | null, hasSchedule: boolean): string | null {
  if (rule === null) return 'takes a field of a trigger, so the definition needs `on`'
  if (hasSchedule) {
    return 'takes a field of a trigger, which a tick does not have; use one definition for the schedule and one for triggers'
  }
  if (!alone) return 'must be the only member of its object'
  return typeof path === 'string' ? pathProblem(path) : 'must be a path, as a string'
}

type Decision =
  | { outcome: 'job'; payload: string }
  | { outcome: 'skipped' | 'waiting_pause' | 'waiting_turn'; reason: string | null; field: string | null }

interface DefinitionLoad {
  paused: boolean
  /** Earlier triggers of the definition wait, or its user cannot be locked now. */
  behind: boolean
}

/** Decides what a matching trigger makes of a definition. */
export function decide(
  { on, payload }: { on: TriggerRule; payload: string },
  data: unknown,
  { paused, behind }: DefinitionLoad,
  payloadBytesMax: number,
): Decision {
  if (paused && on.whenPaused === 'skip') return { outcome: 'skipped', reason: 'paused', field: null }
  if (paused) return { outcome: 'waiting_pause', reason: null, field: null }
  if (behind) return { outcome: 'waiting_turn', reason: null, field: null }
  const filled = fillPayload(payload, data, payloadBytesMax)
  if (filled.ok) return { outcome: 'job', payload: filled.payload }
  return { outcome: 'skipped', reason: filled.reason, field: filled.field }
}
