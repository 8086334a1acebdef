import type { JsonSchema } from './openapi.ts'

/** Text that goes into a body unchanged, because JSON.stringify would not write it. */
export class Raw {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

export type Random = () => number

export const pick = <T>(random: Random, list: readonly T[]): T => list[Math.floor(random() * list.length)] as T
export const chance = (random: Random, share: number): boolean => random() < share

const nested = (levels: number) => new Raw('['.repeat(levels) + ']'.repeat(levels))

/** Strings that are known to break programs. */
export const HOSTILE_TEXT = [
  '',
  ' ',
  '\0',
  'a\0b',
  '\ud800',
  'x\udc00',
  '\u202eabc\u2066',
  '\ufeff',
  'a'.repeat(300),
  'é'.repeat(5_000),
  '../../etc/passwd',
  '..',
  '%00',
  '%s%n',
  "' OR 1=1 --",
  '"; DROP TABLE jobs; --',
  '<script>alert(1)</script>',
  '\x1b[31mred\x07',
  '\r\nSet-Cookie: a=b',
  '1e999',
  '0x10',
  '٣',
  '*',
  '__proto__',
  'constructor',
  '9999-12-31T23:59:59Z',
  '0000-01-01T00:00:00Z',
  '+275760-09-13T00:00:00.001Z',
  '2026-02-30T00:00:00Z',
  '00000000-0000-0000-0000-000000000000',
] as const

export const HOSTILE: readonly unknown[] = [
  ...HOSTILE_TEXT,
  null,
  true,
  false,
  0,
  -1,
  1.5,
  2 ** 31,
  2 ** 53,
  -(2 ** 53),
  1e308,
  5e-324,
  new Raw('-0'),
  new Raw('1e400'),
  new Raw('-1e400'),
  new Raw('123456789012345678901234567890'),
  new Raw('NaN'),
  new Raw('01'),
  new Raw('1.'),
  new Raw('"\\x"'),
  new Raw('"\\ud83d"'),
  [],
  {},
  [null],
  Array(1_001).fill(1),
  nested(60),
  nested(5_000),
  new Raw('{"__proto__":{"role":"admin"}}'),
  new Raw('{"a":1,"a":2}'),
  { constructor: { prototype: { role: 'admin' } } },
  { toString: 1, valueOf: 2, length: -1 },
]

export function toJson(value: unknown): string {
  if (value instanceof Raw) return value.text
  if (Array.isArray(value)) return `[${value.map(toJson).join()}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}:${toJson(member)}`)
  return `{${members.join()}}`
}

/** Known values for field names, so that requests refer to existing things. */
export type Pools = Readonly<Record<string, readonly unknown[]>>

const DEPTH_MAX = 6
const TEXTS = [
  'a',
  'work',
  'a.b',
  'The text',
  '0',
  '1',
  '@daily',
  'UTC',
  '2030-01-01T00:00:00Z',
  '2020-01-01T00:00:00.5+02:00',
  '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07',
  '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07.abc',
  'ab'.repeat(32),
  `00-${'ab'.repeat(16)}-${'cd'.repeat(8)}-01`,
]

/** Generates values that mostly match a schema. A pool supplies what the schema cannot express. */
export class Values {
  readonly #random: Random
  readonly #pools: () => Pools
  readonly #resolve: (schema: JsonSchema) => JsonSchema
  readonly #matching = new Map<string, readonly string[]>()

  constructor(random: Random, pools: () => Pools, resolve: (schema: JsonSchema) => JsonSchema) {
    this.#random = random
    this.#pools = pools
    this.#resolve = resolve
  }

  of(given: JsonSchema, name: string, depth = 0): unknown {
    const schema = this.#resolve(given)
    const pool = this.#pools()[name]
    if (pool !== undefined && schema.type !== 'array') return pick(this.#random, pool)
    if (schema.const !== undefined) return schema.const
    if (schema.enum !== undefined) return pick(this.#random, schema.enum)
    const choices = schema.anyOf ?? schema.oneOf
    if (choices !== undefined) return this.of(pick(this.#random, choices), name, depth)
    const type = Array.isArray(schema.type) ? pick(this.#random, schema.type) : schema.type
    switch (type) {
      case 'string':
        return pick(this.#random, this.#texts(schema))
      case 'integer':
        return Math.floor(this.#number(schema))
      case 'number':
        return this.#number(schema)
      case 'boolean':
        return chance(this.#random, 0.5)
      case 'null':
        return null
      case 'array':
        return depth > DEPTH_MAX ? [] : this.#list(schema, name, depth)
      case 'object':
        return this.#object(schema, depth)
      default:
        return pick(this.#random, [null, 1, 'text', { a: [1, { b: null }] }, []])
    }
  }

  #number({ minimum, exclusiveMinimum, maximum, exclusiveMaximum }: JsonSchema): number {
    const low = minimum ?? (exclusiveMinimum === undefined ? 0 : exclusiveMinimum + 1)
    const high = maximum ?? exclusiveMaximum ?? low + 1_000
    return pick(this.#random, [low, high, low + Math.floor(this.#random() * Math.min(10, high - low))])
  }

  #list({ items, minItems = 0 }: JsonSchema, name: string, depth: number): unknown[] {
    const length = minItems + Math.floor(this.#random() * 2)
    return Array.from({ length }, () => this.of(items ?? {}, name, depth + 1))
  }

  #object({ properties = {}, required = [], additionalProperties }: JsonSchema, depth: number): object {
    const made: Record<string, unknown> = {}
    // Without wait_seconds a call would wait for its default time.
    const needed = (name: string) => required.includes(name) || name === 'wait_seconds'
    for (const [name, property] of Object.entries(properties)) {
      const wanted = needed(name) || (depth <= DEPTH_MAX && chance(this.#random, 0.25))
      if (wanted) made[name] = this.of(property, name, depth + 1)
    }
    if (typeof additionalProperties === 'object' && chance(this.#random, 0.5)) {
      made.extra = this.of(additionalProperties, 'extra', depth + 1)
    }
    return made
  }

  #texts({ pattern = '', minLength = 0, maxLength = Number.POSITIVE_INFINITY, format }: JsonSchema): readonly string[] {
    const key = `${pattern} ${minLength} ${maxLength} ${format}`
    const known = this.#matching.get(key)
    if (known !== undefined) return known
    const rule = new RegExp(pattern, 'u')
    const fits = (text: string) => rule.test(text) && text.length >= minLength && text.length <= maxLength
    const found = [...TEXTS, 'x'.repeat(Math.min(minLength, 1_000))].filter(fits)
    const texts = found.length === 0 ? TEXTS : found
    this.#matching.set(key, texts)
    return texts
  }
}
