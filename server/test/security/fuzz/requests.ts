import type { OpenApi, Operation } from './openapi.ts'
import { chance, HOSTILE, HOSTILE_TEXT, type Pools, pick, type Random, Raw, toJson, Values } from './values.ts'

/** The ids, tokens and values that requests are made of. They change as the test creates new things. */
export interface Surroundings {
  pools: Pools
  /** For `{name}` of a path: `hooks:name` comes before `name`. */
  params: Readonly<Record<string, string>>
  tokens: { worker: string; admin: string; others: readonly string[] }
}

export interface FuzzRequest {
  operation: Operation
  method: string
  bytes: Buffer
  /** The client disconnects before it has sent the whole body. */
  cut: boolean
  /** The path may lead to another operation. */
  strayed: boolean
}

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE', 'PROPFIND']

const HOSTILE_PARAMS = [
  '%00',
  'a%00b',
  '..',
  '%2e%2e',
  '%2F',
  '..%2f..%2fetc',
  '%',
  '%zz',
  '%ff',
  '%ed%a0%80',
  '%E2%80%AE',
  '.',
  ';a=b',
  '*',
  '__proto__',
  'constructor',
  '%0d%0aX:1',
  '\xff',
  '',
  'x'.repeat(200),
  'x'.repeat(1_500),
  '00000000-0000-0000-0000-000000000000',
]

const WRONG_TYPES = [
  'text/plain',
  'application/x-www-form-urlencoded',
  'multipart/form-data; boundary=x',
  'application/json; charset=latin1',
  'application/json;',
  'application/jsonp',
  '',
  '/',
  'a/b; c="',
]

/** Optional headers of a request. */
const EXTRA_HEADERS: readonly (readonly [string, readonly string[]])[] = [
  ['Idempotency-Key', ['fuzz-1', 'fuzz-2', '"quoted"', '', ' ', 'a b', '\xe9', 'k'.repeat(257), '"', 'a, b']],
  ['Accept', ['*/*', 'application/json', 'text/event-stream', 'text/event-stream;q=0', ';q=', 'application/xml']],
  ['Range', ['bytes=0-1', 'bytes=5-2', 'bytes=-99999999999999999999', 'bytes=0-0,2-3', 'lines=1', 'bytes=x']],
  ['If-Range', ['"x"', 'x']],
  ['If-None-Match', ['*', '"x"']],
  ['Last-Event-ID', ['0', '1', '-1', 'x', '1e9', '99999999999999999999', '\xff']],
  ['Upload-Offset', ['0', '5', '-1', 'x', '999999999999999', '9999999999999999']],
  ['X-Lease-Id', ['x', '']],
  ['X-Request-Id', ['mine', 'x'.repeat(500), '\x1b[31m']],
  ['traceparent', [`00-${'ab'.repeat(16)}-${'cd'.repeat(8)}-01`, 'x']],
  ['Ichido-Attempt', ['1', '-1', 'x', '99999999999999999999']],
  ['Content-Encoding', ['gzip', 'identity', '']],
  ['Origin', ['https://evil.example', 'null']],
  ['X-Forwarded-For', ['192.0.2.1', 'x, y', '']],
  ['Expect', ['100-continue', 'x']],
  ['Connection', ['close', 'keep-alive', 'upgrade']],
  ['Authorization', ['Bearer', 'Basic Og==', 'Basic x', 'Bearer a b', '\xff']],
  ['Cookie', ['a=b; __proto__=c']],
]

/** Generates requests from an OpenAPI document: many valid ones, and many with one or two errors. */
export class Requests {
  readonly #api: OpenApi
  readonly #random: Random
  readonly #around: () => Surroundings
  readonly #values: Values

  constructor(api: OpenApi, random: Random, around: () => Surroundings) {
    this.#api = api
    this.#random = random
    this.#around = around
    this.#values = new Values(random, () => around().pools, api.resolve)
  }

  next(): FuzzRequest {
    const operation = pick(this.#random, this.#api.operations)
    const method = this.#chance(0.02) ? pick(this.#random, METHODS) : operation.method
    const { path, strayed } = this.#path(operation)
    const { headers, body } = this.#content(operation)
    const cut = body.length > 1 && this.#chance(0.01)
    const lines = [
      `${method} ${path}${this.#query(operation)} HTTP/1.1`,
      'Host: localhost',
      ...this.#authorization(operation),
      ...headers,
      ...(this.#chance(0.15) ? this.#extraHeaders() : []),
    ]
    const chunked = body.length > 0 && this.#chance(0.03)
    if (chunked) lines.push('Transfer-Encoding: chunked')
    else if (body.length > 0 || method !== 'GET') lines.push(`Content-Length: ${body.length}`)
    const head = Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1')
    const sent = chunked ? inChunks(body) : body
    const bytes = Buffer.concat([head, cut ? sent.subarray(0, sent.length - 1) : sent])
    return { operation, method, bytes, cut, strayed }
  }

  #chance(share: number): boolean {
    return chance(this.#random, share)
  }

  #path({ path }: Operation): { path: string; strayed: boolean } {
    let strayed = false
    const section = path.split('/').find((part) => ['cloud', 'zpe'].includes(part)) ?? path.split('/')[2]
    const { params } = this.#around()
    const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
      if (this.#chance(0.9)) return params[`${section}:${name}`] ?? params[name] ?? 'none'
      strayed = true
      return pick(this.#random, HOSTILE_PARAMS)
    })
    if (!this.#chance(0.01)) return { path: filled, strayed }
    const odd = ['/', '//', '/..', '/../x', '/%00', '/%', '?', '%2e', ';x', '/x'.repeat(300)]
    return { path: filled + pick(this.#random, odd), strayed: true }
  }

  #query({ parameters }: Operation): string {
    const parts: string[] = []
    for (const { name, in: place, required = false, schema } of parameters) {
      if (place !== 'query' || !(required || this.#chance(0.25))) continue
      const hostile = this.#chance(0.3)
      const value = hostile ? pick(this.#random, HOSTILE_TEXT) : this.#values.of(schema, name)
      parts.push(`${name}=${this.#encoded(String(value))}`)
      if (this.#chance(0.03)) parts.push(`${name}=again`)
    }
    if (this.#chance(0.03)) parts.push(pick(this.#random, ['unknown=1', '__proto__=1', '=', '&&', '%00=%00', 'a[b]=c']))
    return parts.length === 0 ? '' : `?${parts.join('&')}`
  }

  #encoded(text: string): string {
    const bytes = Buffer.from(text, 'utf8')
    return [...bytes].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join('')
  }

  #authorization({ isForWorkers }: Operation): string[] {
    const { worker, admin, others } = this.#around().tokens
    const token = this.#chance(0.7) ? (isForWorkers ? worker : admin) : pick(this.#random, others)
    if (this.#chance(0.02)) return []
    return [this.#chance(0.9) ? `Authorization: Bearer ${token}` : `X-API-Key: ${token}`]
  }

  #extraHeaders(): string[] {
    const [name, values] = pick(this.#random, EXTRA_HEADERS)
    const line = `${name}: ${pick(this.#random, values)}`
    return this.#chance(0.1) ? [line, `${name}: ${pick(this.#random, values)}`] : [line]
  }

  #content({ body }: Operation): { headers: string[]; body: Buffer } {
    // Some requests send a body where none is expected.
    if (body === null && !this.#chance(0.1)) return { headers: [], body: Buffer.alloc(0) }
    const type = body?.type ?? 'application/json'
    const headers = this.#chance(0.04)
      ? [`Content-Type: ${pick(this.#random, WRONG_TYPES)}`]
      : [`Content-Type: ${type}`]
    if (type !== 'application/json')
      return { headers, body: Buffer.from(pick(this.#random, ['', 'some bytes', '\xff'])) }
    const value = this.#values.of(body?.schema ?? { type: 'object' }, 'body')
    return { headers, body: this.#damaged(toJson(this.#chance(0.45) ? this.#mutated(value) : value)) }
  }

  /** The same value with an error in one place. */
  #mutated(value: unknown): unknown {
    const isObject = typeof value === 'object' && value !== null && !(value instanceof Raw)
    const names = isObject ? Object.keys(value) : []
    if (!isObject || names.length === 0 || this.#chance(0.1)) return pick(this.#random, HOSTILE)
    const name = pick(this.#random, names)
    const copy: Record<string, unknown> | unknown[] = Array.isArray(value) ? [...value] : { ...value }
    const members = copy as Record<string, unknown>
    if (typeof members[name] === 'object' && this.#chance(0.6)) {
      members[name] = this.#mutated(members[name])
      return copy
    }
    const what = this.#random()
    if (what < 0.1) return new Raw(`${toJson(copy).slice(0, -1)},${JSON.stringify(name)}:1}`)
    if (what < 0.2) delete members[name]
    else if (what < 0.3) members.unknown = 1
    else members[name] = pick(this.#random, HOSTILE)
    return copy
  }

  /** Bytes that are not JSON, or not UTF-8. */
  #damaged(text: string): Buffer {
    const bytes = Buffer.from(text, 'utf8')
    if (bytes.length === 0 || !this.#chance(0.05)) return bytes
    const at = Math.floor(this.#random() * bytes.length)
    switch (Math.floor(this.#random() * 5)) {
      case 0:
        return bytes.subarray(0, at)
      case 1:
        bytes[at] = 0xff
        return bytes
      case 2:
        bytes[at] = 0
        return bytes
      case 3:
        return Buffer.concat([Buffer.from('\ufeff'), bytes])
      default:
        return Buffer.concat([bytes, Buffer.from(']')])
    }
  }
}

function inChunks(body: Buffer): Buffer {
  const middle = Math.floor(body.length / 2)
  const parts = [body.subarray(0, middle), body.subarray(middle)].filter((part) => part.length > 0)
  const chunks = parts.flatMap((part) => [Buffer.from(`${part.length.toString(16)}\r\n`), part, Buffer.from('\r\n')])
  return Buffer.concat([...chunks, Buffer.from('0\r\n\r\n')])
}
