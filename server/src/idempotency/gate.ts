import { hash } from 'node:crypto'
import { sleep } from '@ichido/sdk/world'
import { parseRequestJson } from '../core/json/request-json.ts'
import { type KeyParse, parseKeyHeader, REQUEST_HASH_VERSION, requestHash } from '../core/keys/key.ts'
import { type Answer, BODY_HEADERS, bodyNotKept, encodeAnswer, REPLAYED, refuse, type StoredAnswer } from './answer.ts'
import { type Call, KeyClaim, KeylessCall } from './key-claim.ts'
import type { IdempotencyCount, Settings } from './settings.ts'
import type { Claim, KeyRecord, Keys, Place } from './stores/keys.ts'

/** A request that broke off, for a hook that checks whether it took effect. */
export interface BrokenOff {
  /** The owner of the key. */
  user: string
  /** The template of the route. */
  route: string
  /** The idempotency key. */
  key: string
  /** When the key was first seen. */
  createdAtMs: number
}

/**
 * The result of a `recover` hook: the answer of the first request, which is stored and replayed; `run` if the first request did
 * nothing and the handler may run; `unknown` if this is not known yet and the caller must try again later.
 */
export type Recovery = Answer | 'run' | 'unknown'

/** The route and the owner of a key. */
export interface Route {
  /** The template, not the path: `POST /orders/{id}/items`. */
  route: string
  /** The owner of the key: two users can use the same key without conflict. */
  user: string
  /** True, the default: a request without a key gets 400. False: its handler runs without protection. */
  required?: boolean
  /** Called before a key is used again whose process died or failed. Without it, such a key gets 409 permanently. */
  recover?: (request: BrokenOff) => Recovery | Promise<Recovery>
}

/** The parts of a request that must be equal when its key is used again. */
export interface Asked {
  method: string
  /** The path and the query string, as sent. */
  target: string
  contentType: string
  /** The bytes, or the result of an earlier parser of the application. */
  body: Uint8Array | { parsed: unknown }
}

export type Admission<Tx, Returned> =
  | { kind: 'answer'; answer: StoredAnswer }
  | { kind: 'keyless'; call: Call<Tx, Returned> }
  | { kind: 'hold'; hold: KeyClaim<Tx, Returned> }

type Count = (outcome: IdempotencyCount) => void

/** With a key, in any script, this stays below PostgreSQL's index limit of 2,704 bytes. */
const TEXT_MAX = 256
const HEADER = 'Idempotency-Key'
/** The pause between looks at a key that another process holds. */
const POLL_FIRST_MS = 50
const POLL_MAX_MS = 1_000
const TIDY_EVERY_MS = 60_000
const TIDY_BATCH_MAX = 500
const TIDY_PAUSE_MS = 10

/** Admits the first request of a key, and answers every other one. */
export class Gate<Tx, Returned> {
  readonly #keys: Keys<Tx, Returned>
  readonly #settings: Settings
  /** The keys that this process holds: they need no polling, and are alive even if their lease has expired. */
  readonly #holds = new Map<string, KeyClaim<Tx, Returned>>()
  #tidyAtMs: number

  constructor(keys: Keys<Tx, Returned>, settings: Settings) {
    this.#keys = keys
    this.#settings = settings
    this.#tidyAtMs = settings.world.monotonic() + TIDY_EVERY_MS
  }

  async admit(header: string | undefined, asked: Asked, route: Route): Promise<Admission<Tx, Returned>> {
    for (const name of ['user', 'route'] as const) checkText(name, route[name])
    if (header === undefined) {
      if (route.required === false) return { kind: 'keyless', call: new KeylessCall(this.#keys) }
      return refused('INVALID_PAYLOAD', { field: HEADER, message: `Missing required header: ${HEADER}` })
    }
    const parse = parseHeader(header)
    if (!parse.ok) return refused('INVALID_PAYLOAD', { field: HEADER, message: `${HEADER} ${parse.problem}` })
    this.#tidyNow()
    const place = { user: route.user, route: route.route, key: parse.key }
    const count = this.#counter(route.route)
    count('use')
    return this.#enter(place, hashOf(asked), route.recover, count)
  }

  /** The answer for a holder that lost its key. */
  async lookAgain(place: Place): Promise<StoredAnswer> {
    const record = await this.#keys.find(place).catch(this.#settings.onError)
    return record?.answer ? replay(record.answer) : refuse('IDEMPOTENCY_IN_PROGRESS')
  }

  /** Removes expired answers in small batches; returns how many. */
  async tidy(): Promise<number> {
    for (let removed = 0; ; ) {
      const batch = await this.#keys.removeExpired(TIDY_BATCH_MAX)
      removed += batch
      if (batch < TIDY_BATCH_MAX) return removed
      await sleep(this.#settings.world, TIDY_PAUSE_MS)
    }
  }

  async #enter(
    place: Place,
    requestHash: string,
    recover: Route['recover'],
    count: Count,
  ): Promise<Admission<Tx, Returned>> {
    const { world, leaseMs, waitMs } = this.#settings
    const deadlineMs = world.monotonic() + waitMs
    for (let pauseMs = POLL_FIRST_MS; ; pauseMs = Math.min(POLL_MAX_MS, pauseMs * 2)) {
      const claim = { ...place, holder: world.uuid(), requestHash, hashVersion: REQUEST_HASH_VERSION, leaseMs }
      if (await this.#claimed(claim)) return this.#hold(claim)
      const record = await this.#keys.find(place)
      // Released or removed in between, so it can be claimed now.
      if (record === null) continue
      const admission = await this.#passOrAnswer(claim, record, recover, count)
      if (admission !== null) return admission
      count('wait')
      const leftMs = deadlineMs - world.monotonic()
      if (leftMs <= 0) return refused('IDEMPOTENCY_IN_PROGRESS')
      const local = this.#holds.get(nameOf(place))
      if (local === undefined) await sleep(world, Math.min(leftMs, pauseMs))
      else await this.#settledWithin(local, leftMs)
    }
  }

  /** Counts each outcome at most once for a request. */
  #counter(route: string): Count {
    const { metrics, onError } = this.#settings
    const counted = new Set<IdempotencyCount>()
    return (outcome) => {
      if (counted.has(outcome)) return
      counted.add(outcome)
      try {
        metrics.count(outcome, route)
      } catch (error) {
        // A failed metric must not fail the request.
        onError(error)
      }
    }
  }

  /** A broken connection may have inserted the key, so it is released. */
  async #claimed(claim: Claim): Promise<boolean> {
    try {
      return await this.#keys.claim(claim)
    } catch (error) {
      this.#keys.release(claim).catch(this.#settings.onError)
      throw error
    }
  }

  /** Decides by the existing record; null: its request is still running. */
  async #passOrAnswer(
    claim: Claim,
    record: KeyRecord,
    recover: Route['recover'],
    count: Count,
  ): Promise<Admission<Tx, Returned> | null> {
    if (record.expired) return (await this.#keys.reclaim(claim, record.holder)) ? this.#hold(claim) : null
    const comparable = record.hashVersion === claim.hashVersion
    if (comparable && record.requestHash !== claim.requestHash) {
      count('mismatch')
      return refused('IDEMPOTENCY_KEY_REUSED', { status: this.#settings.mismatchStatus })
    }
    if (record.answer !== null) {
      count('duplicate')
      return { kind: 'answer', answer: replay(record.answer) }
    }
    const brokenOff = !this.#holds.has(nameOf(claim)) && (record.state === 'in_doubt' || record.lapsed)
    if (!brokenOff) return null
    count('in_doubt')
    if (recover === undefined) return refused('IDEMPOTENCY_IN_DOUBT')
    const taken = await this.#keys.takeOver(claim, claim.leaseMs, record.holder)
    return taken ? this.#recovered(this.#hold(claim), record, recover) : null
  }

  async #recovered(
    admission: { kind: 'hold'; hold: KeyClaim<Tx, Returned> },
    { createdAtMs }: KeyRecord,
    recover: NonNullable<Route['recover']>,
  ): Promise<Admission<Tx, Returned>> {
    const { hold } = admission
    const answer = await this.#ask(() => recover({ ...hold.place, createdAtMs }))
    if (answer === 'run') return admission
    if (answer === 'unknown') {
      await hold.leaveInDoubt()
      return refused('IDEMPOTENCY_IN_PROGRESS')
    }
    const { send } = await hold.finish(answer)
    return { kind: 'answer', answer: send === 'look_again' ? await this.lookAgain(hold.place) : replay(answer) }
  }

  async #ask(recover: () => Recovery | Promise<Recovery>): Promise<StoredAnswer | 'run' | 'unknown'> {
    try {
      const recovery = await recover()
      return recovery === 'run' || recovery === 'unknown' ? recovery : encodeAnswer(recovery)
    } catch (error) {
      this.#settings.onError(error)
      return 'unknown'
    }
  }

  #hold(claim: Claim): { kind: 'hold'; hold: KeyClaim<Tx, Returned> } {
    const name = nameOf(claim)
    const hold = new KeyClaim(this.#keys, claim, this.#settings)
    this.#holds.set(name, hold)
    hold.settled.then(() => {
      if (this.#holds.get(name) === hold) this.#holds.delete(name)
    })
    return { kind: 'hold', hold }
  }

  async #settledWithin(hold: KeyClaim<Tx, Returned>, ms: number): Promise<void> {
    const stop = new AbortController()
    hold.settled.then(() => stop.abort())
    await sleep(this.#settings.world, ms, stop.signal)
  }

  #tidyNow(): void {
    const { world, onError } = this.#settings
    if (world.monotonic() < this.#tidyAtMs) return
    this.#tidyAtMs = Number.POSITIVE_INFINITY
    this.tidy()
      .catch(onError)
      .finally(() => {
        this.#tidyAtMs = world.monotonic() + TIDY_EVERY_MS
      })
  }
}

const nameOf = ({ user, route, key }: Place): string => JSON.stringify([user, route, key])

const refused = (...reason: Parameters<typeof refuse>): { kind: 'answer'; answer: StoredAnswer } => ({
  kind: 'answer',
  answer: refuse(...reason),
})

function replay({ status, headers, body }: StoredAnswer): StoredAnswer {
  if (body !== null) return { status, headers: [...headers, [REPLAYED, 'true']], body }
  const otherHeaders = headers.filter(([name]) => !BODY_HEADERS.includes(name))
  return {
    status,
    headers: [...otherHeaders, ['content-type', 'application/json'], [REPLAYED, 'true']],
    body: bodyNotKept(),
  }
}

function checkText(name: string, text: string): void {
  const fits = typeof text === 'string' && text.length > 0 && text.length <= TEXT_MAX
  if (!fits || !text.isWellFormed() || text.includes('\0')) {
    throw new TypeError(`${name} must be text of 1 to ${TEXT_MAX} characters, not ${JSON.stringify(text)}`)
  }
}

export function hashOf({ method, target, contentType, body }: Asked): string {
  const type = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  return requestHash({ method, target, type, body: bodyForm(body, type) })
}

/** JSON is compared by value, so the order of members does not matter; everything else by its bytes. */
function bodyForm(body: Asked['body'], type: string): unknown {
  if (body instanceof Uint8Array) {
    return bytesForm(body, type === 'application/json' || type.endsWith('+json'))
  }
  const { parsed } = body
  if (parsed instanceof Uint8Array) return bytesForm(parsed, false)
  if (typeof parsed === 'string') return bytesForm(Buffer.from(parsed), false)
  return bytesForm(Buffer.from(JSON.stringify(parsed) ?? ''), true)
}

function bytesForm(bytes: Uint8Array, json: boolean): unknown {
  if (bytes.length === 0) return null
  const parse = json ? parseRequestJson(Buffer.from(bytes).toString('utf8')) : null
  return parse?.ok ? { json: parse.value } : { sha256: hash('sha256', bytes, 'hex') }
}

/** Node and fetch join a repeated header with a comma and a space, which no key may contain. */
export function parseHeader(header: string): KeyParse {
  const parse = parseKeyHeader(header)
  if (!parse.ok && header.includes(', ')) return { ok: false, problem: 'must be sent once, not several times' }
  return parse
}
