import { Transform, type TransformCallback } from 'node:stream'
import { IchidoError, JSON_MAX_DEPTH } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { errorOf } from '../../core/json/problem.ts'
import { BODY_TOO_DEEP } from '../../core/json/request-json.ts'
import { setBounded } from '../../services/limits/maximum.ts'

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** The limit of routes that take many jobs, reports, events, triggers or log lines: 1,000 of 16 KiB each. */
export const BATCH_BODY_BYTES_MAX = 16 * 1024 * 1024

/** For the other fields of a body beside a payload or a result. */
const ENVELOPE_BYTES_MAX = 128 * 1024

/** The limit of a route whose body has one payload or one result of up to this many bytes. */
export const bodyBytesFor = (bytesMax: number) => bytesMax + ENVELOPE_BYTES_MAX

export const BODY_BYTES_MAX = bodyBytesFor(0)

/** The bodies that this node reads at the same time, in all and of one sender. */
const NODE_BYTES_MAX = 128 * 1024 * 1024
const SENDER_BYTES_MAX = 16 * 1024 * 1024
/** The average rate of one sender: two whole batches a second. */
const SENDER_BYTES_PER_MS = (32 * 1024 * 1024) / 1_000
/** How far a sender may be ahead of its average rate. */
const AHEAD_MS = 500
const SENDERS_MAX = 10_000

interface Waiting {
  sender: string
  bytes: number
  enter(): void
}

/**
 * Memory for large bodies until they are parsed. A body without room stays in the socket. Each sender has its own share
 * and rate, so that no sender keeps others out.
 */
export class BodyBudget {
  readonly #world: Pick<World, 'monotonic' | 'after'>
  readonly #held = new Map<string, number>()
  /** When each sender has paid for its bodies, at the average rate. */
  readonly #paidUntilMs = new Map<string, number>()
  readonly #waiting = new Set<Waiting>()
  #total = 0
  #callOff = () => {}

  constructor(world: Pick<World, 'monotonic' | 'after'>) {
    this.#world = world
  }

  /**
   * Calls back when there is room. The returned function gives the room back, or stops waiting for it. It may be called
   * twice.
   */
  take(sender: string, bytes: number, enter: () => void): () => void {
    const asked: Waiting = { sender, bytes, enter }
    this.#waiting.add(asked)
    this.#letIn()
    let given = false
    return () => {
      if (given) return
      given = true
      if (this.#waiting.delete(asked)) return
      this.#change(sender, -bytes)
      this.#letIn()
    }
  }

  #letIn(): void {
    const nowMs = this.#world.monotonic()
    let nextMs = Number.POSITIVE_INFINITY
    for (const asked of this.#waiting) {
      const { sender, bytes, enter } = asked
      const own = this.#held.get(sender) ?? 0
      // One body alone always fits, because a route's limit may be larger than the share.
      const fits = own === 0 || own + bytes <= SENDER_BYTES_MAX
      if (!fits || (this.#total > 0 && this.#total + bytes > NODE_BYTES_MAX)) continue
      const aheadMs = (this.#paidUntilMs.get(sender) ?? nowMs) - nowMs
      if (aheadMs > AHEAD_MS) nextMs = Math.min(nextMs, aheadMs - AHEAD_MS)
      else {
        this.#waiting.delete(asked)
        this.#change(sender, bytes)
        this.#pay(sender, Math.max(aheadMs, 0) + bytes / SENDER_BYTES_PER_MS, nowMs)
        enter()
      }
    }
    this.#callOff()
    if (nextMs < Number.POSITIVE_INFINITY) this.#callOff = this.#world.after(Math.ceil(nextMs), () => this.#letIn())
  }

  #pay(sender: string, ms: number, nowMs: number): void {
    this.#paidUntilMs.delete(sender)
    setBounded(this.#paidUntilMs, SENDERS_MAX, sender, nowMs + ms)
  }

  #change(sender: string, bytes: number): void {
    this.#total += bytes
    const own = (this.#held.get(sender) ?? 0) + bytes
    if (own === 0) this.#held.delete(sender)
    else this.#held.set(sender, own)
  }
}

export interface JsonLimits {
  /** Names, arrays and objects: each takes about a microsecond to check and parse. */
  readonly membersMax: number
  /** Elements of arrays: they take a tenth of that. */
  readonly elementsMax: number
}

/**
 * Counts the parts of a large body while it arrives, and refuses it when it has too many: 16 MiB of tiny names blocked
 * the event loop for five seconds. It does not check whether the bytes are JSON.
 */
export class JsonGauge extends Transform {
  readonly #limits: JsonLimits
  #members = 0
  #elements = 0
  #depth = 0
  #inString = false
  #escaped = false

  constructor(limits: JsonLimits) {
    super()
    this.#limits = limits
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    this.#count(chunk)
    const { membersMax, elementsMax } = this.#limits
    if (this.#depth > JSON_MAX_DEPTH) done(errorOf(BODY_TOO_DEEP))
    else if (this.#members > membersMax) done(tooMuch(membersMax, 'names, arrays and objects'))
    else if (this.#elements > elementsMax) done(tooMuch(elementsMax, 'elements'))
    else done(null, chunk)
  }

  #count(chunk: Buffer): void {
    let [members, elements, depth, inString, escaped] = [0, 0, this.#depth, this.#inString, this.#escaped]
    for (let i = 0; i < chunk.length; i++) {
      const byte = chunk[i]
      if (escaped) escaped = false
      else if (byte === BACKSLASH) escaped = inString
      else if (byte === QUOTE) inString = !inString
      else if (inString) continue
      else if (byte === 0x2c /* , */) elements++
      else if (byte === 0x3a /* : */) members++
      else if (byte === 0x5d /* ] */ || byte === 0x7d /* } */) depth--
      else if (byte === 0x5b /* [ */ || byte === 0x7b /* { */) {
        members++
        if (++depth > JSON_MAX_DEPTH) break
      }
    }
    this.#members += members
    this.#elements += elements
    this.#depth = depth
    this.#inString = inString
    this.#escaped = escaped
  }
}

function tooMuch(max: number, what: string): IchidoError {
  return new IchidoError('PAYLOAD_TOO_LARGE', `The request body has more than ${max} ${what}`)
}
