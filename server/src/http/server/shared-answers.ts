import type { World } from '@ichido/sdk/world'
import type { FastifyInstance } from 'fastify'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** A GET whose answer follows from its URL and the caller's user and role. Callers that accept an older answer share it. */
    shared?: boolean
  }
  interface FastifyRequest {
    /** Gives the answer to the callers that wait for it; null: it is not to be shared. */
    share: ((text: string | null) => void) | null
  }
}

/** An answer is shared for this long at most after its read began. */
const SHARED_MS = 5_000
/** The kept answers of a node together. */
const KEPT_CHARS_MAX = 8_000_000

/**
 * Many open dashboards ask for the same thing every few seconds. A caller that accepts an answer of some age says so with
 * `Cache-Control: max-age=<seconds>`, and gets one that the node has read for another caller of the same user and role. Each
 * caller is authenticated first, so a revoked token gets nothing. Callers without this header always get a new answer.
 */
export function shareAnswers(app: FastifyInstance, world: Pick<World, 'monotonic'>): void {
  const answers = new SharedAnswers(world)
  app.decorateRequest('share', null)
  app.addHook('preValidation', async (request, reply) => {
    const { caller, headers, url } = request
    if (request.routeOptions.config.shared !== true || caller === null) return
    const ageMs = acceptedAgeMs(headers['cache-control'])
    if (ageMs === 0) return
    const key = JSON.stringify([caller.userId, caller.role, url])
    // Without an `await` if there is no answer yet: another request would find none, either, and read too.
    const found = answers.find(key, ageMs)
    const text = found === null ? null : await found
    if (text === null) request.share = answers.begin(key)
    else return reply.type('application/json; charset=utf-8').send(text)
  })
  app.addHook('onSend', (request, reply, payload, done) => {
    request.share?.(reply.statusCode === 200 && typeof payload === 'string' ? payload : null)
    done()
  })
  app.addHook('onRequestAbort', (request, done) => {
    request.share?.(null)
    done()
  })
}

function acceptedAgeMs(cacheControl: string | undefined): number {
  const [, seconds] = /(?:^|[\s,])max-age=(\d+)/i.exec(cacheControl ?? '') ?? []
  return Math.min(Number(seconds ?? 0) * 1_000, SHARED_MS)
}

interface Kept {
  beganMs: number
  chars: number
  text: Promise<string | null>
}

class SharedAnswers {
  readonly #world: Pick<World, 'monotonic'>
  /** In the order in which their reads began. */
  readonly #kept = new Map<string, Kept>()
  #chars = 0

  constructor(world: Pick<World, 'monotonic'>) {
    this.#world = world
  }

  /** An answer whose read began no longer ago, even if it has not ended yet. */
  find(key: string, ageMs: number): Promise<string | null> | null {
    const kept = this.#kept.get(key)
    return kept !== undefined && this.#ageMs(kept) < ageMs ? kept.text : null
  }

  begin(key: string): (text: string | null) => void {
    for (const [old, kept] of this.#kept) if (old === key || this.#ageMs(kept) >= SHARED_MS) this.#forget(old, kept)
    const { promise, resolve } = Promise.withResolvers<string | null>()
    const kept: Kept = { beganMs: this.#world.monotonic(), chars: 0, text: promise }
    this.#kept.set(key, kept)
    return (text) => {
      resolve(text)
      if (this.#kept.get(key) !== kept) return
      if (text === null) this.#forget(key, kept)
      else this.#weigh(kept, text.length)
    }
  }

  #ageMs({ beganMs }: Kept): number {
    return this.#world.monotonic() - beganMs
  }

  #weigh(kept: Kept, chars: number): void {
    this.#chars += chars - kept.chars
    kept.chars = chars
    for (const [key, oldest] of this.#kept) {
      if (this.#chars <= KEPT_CHARS_MAX) return
      this.#forget(key, oldest)
    }
  }

  #forget(key: string, { chars }: Kept): void {
    this.#kept.delete(key)
    this.#chars -= chars
  }
}
