import type { OutgoingHttpHeader, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { BODY_HEADERS, REPLAYED, refuse, type StoredAnswer } from '../answer.ts'

const HELD_BACK = ['writeHead', 'write', 'end', 'flushHeaders', 'destroy'] as const

/** The answer of the handler, or of the plugin instead. */
export type Draft = { by: 'handler' | 'plugin'; answer: StoredAnswer }

export interface HeldResponse {
  /** Resolves when the handler has ended its answer, or when it is too large to keep or a stream. */
  drafted: Promise<Draft>
  /** Sends the held answer; later writes of the handler pass through. */
  letGo(): void
  /** Sends another answer with the headers that are set; later writes of the handler are dropped. */
  replace(answer: StoredAnswer): void
}

type Chunk = string | Uint8Array
type Args = readonly unknown[]

/** Holds the answer until the key's record is written, so that a caller never sees an answer that can get lost. */
export function holdBack(res: ServerResponse, maxBytes: number): HeldResponse {
  const drafted = Promise.withResolvers<Draft>()
  const chunks: Buffer[] = []
  let bytes = 0
  let ended = false
  let onEnded: (() => void) | undefined
  let head: Head | null = null

  function put(args: Args): boolean {
    const [chunk, encoding] = args
    if (ended || !(typeof chunk === 'string' || chunk instanceof Uint8Array)) return true
    const buffer = bufferOf(chunk, encoding)
    chunks.push(buffer)
    bytes += buffer.length
    if (bytes <= maxBytes && !isStream(res)) return true
    fix()
    return false
  }

  /** The first answer counts: a late error handler would still change status and headers. */
  function fix(): void {
    if (head !== null) return
    res.removeHeader(REPLAYED)
    head = { status: res.statusCode, message: res.statusMessage, headers: res.getHeaders() }
    const body = bytes > maxBytes ? null : Buffer.concat(chunks)
    if (isStream(res)) drafted.resolve({ by: 'plugin', answer: refuse('IDEMPOTENCY_STREAM_REFUSED') })
    else drafted.resolve({ by: 'handler', answer: { status: head.status, headers: pairs(head.headers), body } })
  }

  const methods = {
    writeHead(status: number, ...rest: Args) {
      res.statusCode = status
      if (typeof rest[0] === 'string') res.statusMessage = rest[0]
      for (const [name, value] of given(rest.at(-1))) res.setHeader(name, value)
      if (isStream(res)) fix()
      return res
    },
    write(...args: Args) {
      const more = put(args)
      const done = args.find((arg) => typeof arg === 'function')
      if (done !== undefined) queueMicrotask(() => done(null))
      return more
    },
    end(...args: Args) {
      if (ended) return res
      put(args)
      ended = true
      const done = args.find((arg) => typeof arg === 'function')
      if (done !== undefined) onEnded = () => done()
      fix()
      return res
    },
    flushHeaders() {
      if (isStream(res)) fix()
    },
    /** A handler that cuts the connection, or whose stream breaks, has failed. */
    destroy() {
      drafted.resolve({ by: 'plugin', answer: refuse('INTERNAL') })
      return res
    },
  }
  const before = HELD_BACK.map((name) => Object.getOwnPropertyDescriptor(res, name))
  Object.assign(res, methods)

  function restore(): void {
    for (const [i, name] of HELD_BACK.entries()) {
      const own = before[i]
      if (own === undefined) Reflect.deleteProperty(res, name)
      else Object.defineProperty(res, name, own)
    }
  }

  return {
    drafted: drafted.promise,
    letGo() {
      restore()
      if (head !== null) setHead(res, head)
      if (ended) return void res.end(Buffer.concat(chunks), onEnded)
      for (const chunk of chunks) res.write(chunk)
      res.emit('drain')
    },
    replace(answer) {
      restore()
      if (head !== null) setHead(res, head)
      sendAnswer(res, answer, onEnded)
      ended = true
      Object.assign(res, methods)
    },
  }
}

type Head = { status: number; message: string; headers: OutgoingHttpHeaders }

function setHead(res: ServerResponse, { status, message, headers }: Head): void {
  for (const name of res.getHeaderNames()) res.removeHeader(name)
  for (const [name, value] of given(headers)) res.setHeader(name, value)
  res.statusCode = status
  res.statusMessage = message
}

export function sendAnswer(res: ServerResponse, { status, headers, body }: StoredAnswer, onEnded?: () => void): void {
  for (const name of [...BODY_HEADERS, REPLAYED]) res.removeHeader(name)
  for (const name of new Set(headers.map(([name]) => name))) {
    const values = headers.filter(([other]) => other === name).map(([, value]) => value)
    res.setHeader(name, values.length === 1 ? values.join() : values)
  }
  res.statusCode = status
  res.statusMessage = ''
  res.end(body ?? '', onEnded)
}

/** Headers as `writeHead` accepts them: an object, a list of pairs, or a flat list. */
function given(headers: unknown): Map<string, OutgoingHttpHeader> {
  const named = new Map<string, OutgoingHttpHeader>()
  if (typeof headers !== 'object' || headers === null) return named
  if (!Array.isArray(headers)) {
    for (const [name, value] of Object.entries(headers)) if (value !== undefined) named.set(name, headerOf(value))
    return named
  }
  const flat = headers.flat()
  for (let i = 0; i + 1 < flat.length; i += 2) {
    const name = String(flat[i]).toLowerCase()
    const earlier = named.get(name)
    named.set(name, earlier === undefined ? String(flat[i + 1]) : [earlier, flat[i + 1]].flat().map(String))
  }
  return named
}

const headerOf = (value: unknown): OutgoingHttpHeader => (Array.isArray(value) ? value.map(String) : String(value))

const pairs = (headers: OutgoingHttpHeaders): [string, string][] =>
  Object.entries(headers).flatMap(([name, value]) =>
    [value ?? []].flat().map((text): [string, string] => [name, String(text)]),
  )

function bufferOf(chunk: Chunk, encoding: unknown): Buffer {
  if (typeof chunk !== 'string') return Buffer.from(chunk)
  return Buffer.from(chunk, typeof encoding === 'string' && Buffer.isEncoding(encoding) ? encoding : 'utf8')
}

function isStream(res: ServerResponse): boolean {
  return String(res.getHeader('content-type') ?? '').startsWith('text/event-stream')
}
