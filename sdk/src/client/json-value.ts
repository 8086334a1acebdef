import { JSON_MAX_DEPTH } from '../protocol/index.ts'
import { InvalidValue } from './errors.ts'

/** Of 64 levels of names that somebody made up. */
const PATH_MAX = 300

/** Where in a value something is, as code would reach it: `result.items[3].when`. */
export function pathText(what: string, path: readonly PropertyKey[]): string {
  const text = path.reduce<string>((before, part) => {
    if (typeof part === 'number' || /^\d+$/.test(String(part))) return `${before}[${String(part)}]`
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

/** Goes on after the path, at whose end it leaves off. */
function findProblem(given: unknown, path: PropertyKey[], parents: object[]): string | null {
  const value = asJson(given, path.at(-1))
  if (typeof value !== 'object' || value === null) return primitiveProblem(value)
  const why = objectProblem(value, parents)
  if (why !== null) return why
  parents.push(value)
  // Holes are entries, too.
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

/** As `JSON.stringify` does it. A Date that is none keeps its shape, for it would turn into null. */
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
      return 'is a function, which JSON cannot hold'
    case 'symbol':
      return 'is a symbol, which JSON cannot hold'
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

/** Also of another realm, and without a prototype. */
function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

function nameOf(value: object): string {
  const { name } = value.constructor ?? {}
  return typeof name === 'string' && name !== '' ? name : 'class instance'
}

const REMEDIES: Readonly<Record<string, string>> = {
  Map: 'use Object.fromEntries(map)',
  Set: 'use an array',
  Promise: 'await it',
}
