import { Transform, type TransformCallback } from 'node:stream'
import { IchidoError, JSON_MAX_DEPTH } from '@ichido/sdk/protocol'

export interface JsonLimits {
  /** Names, arrays and objects: each costs about a microsecond to check and to parse, on the one thread there is. */
  readonly membersMax: number
  /** Of arrays; they cost a tenth of that. */
  readonly elementsMax: number
}

const QUOTE = 0x22
const BACKSLASH = 0x5c

/**
 * Counts while a large body arrives, piece by piece, and refuses it as soon as there is too much in it: 16 MiB of tiny names
 * took five seconds in which nobody else was served. It does not ask whether the bytes are JSON at all.
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
    if (this.#depth > JSON_MAX_DEPTH) done(tooDeep())
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

function tooDeep(): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', `The body is nested more than ${JSON_MAX_DEPTH} levels deep`)
}

function tooMuch(max: number, what: string): IchidoError {
  return new IchidoError('PAYLOAD_TOO_LARGE', `The request body has more than ${max} ${what}`)
}
