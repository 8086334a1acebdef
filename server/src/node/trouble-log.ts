import { sleep, type World } from '@ichido/sdk/world'
import { LockTimeout, StoreFull, StoreUnavailable } from '../core/node/store-errors.ts'
import type { FullTime } from '../services/system/alerts.ts'
import { isContention } from '../store/engines/postgres/errors.ts'

interface TroubleLogOptions {
  /** For example pino's logger. */
  logger: { warn(fields: object, text: string): void; warn(text: string): void }
  world: Pick<World, 'monotonic' | 'after'>
  /** Settles when the store answers. */
  askStore(): Promise<unknown>
}

const SAY_AGAIN_MS = 60_000
const SAID_MAX = 1_000
const LOOK_MS = 1_000

/**
 * Logs errors outside of any request. All background tasks meet the same error again and again, so it is logged once a
 * minute. An unreachable store is logged once for all, until it answers again.
 */
export class TroubleLog {
  readonly #options: TroubleLogOptions
  readonly #saidAtMs = new Map<string, number>()
  readonly #closing = new AbortController()
  #storeAway = false

  constructor(options: TroubleLogOptions) {
    this.#options = options
  }

  readonly on = (where: string, error: unknown): void => {
    // `onFull` logs it once for all.
    if (error instanceof StoreFull) return
    const { logger, world } = this.#options
    const heldUp = error instanceof StoreUnavailable && isHeldUp(error)
    if (error instanceof StoreUnavailable && !heldUp) return void this.#awaitStore(where, error)
    const name = `${where}: ${String(error)}`
    const nowMs = world.monotonic()
    if (nowMs - (this.#saidAtMs.get(name) ?? Number.NEGATIVE_INFINITY) < SAY_AGAIN_MS) return
    if (this.#saidAtMs.size >= SAID_MAX) this.#saidAtMs.clear()
    this.#saidAtMs.set(name, nowMs)
    if (heldUp) logger.warn({ where, why: error.message }, 'another transaction blocks the store')
    else logger.warn({ where, err: error }, name)
  }

  readonly onFull = ({ place, message, endedAtMs }: FullTime): void => {
    const { logger } = this.#options
    if (endedAtMs === null) logger.warn({ place, why: message }, 'a disk is full')
    else logger.warn({ place }, 'the disk has room again')
  }

  /** The node stops or could not start, so it no longer waits for the store. */
  close(): void {
    this.#closing.abort()
  }

  async #awaitStore(where: string, { message }: StoreUnavailable): Promise<void> {
    const { logger, world, askStore } = this.#options
    const { signal } = this.#closing
    if (this.#storeAway || signal.aborted) return
    this.#storeAway = true
    logger.warn({ where, why: message }, 'the store cannot be reached')
    const answers = () =>
      askStore().then(
        () => true,
        () => false,
      )
    while (!(await answers())) {
      // A closed store never answers: waiting for it would keep the process alive for ever.
      await sleep(world, LOOK_MS, signal)
      if (signal.aborted) return
    }
    this.#storeAway = false
    if (!signal.aborted) logger.warn('the store answers again')
  }
}

/** The store answers, but a lock was held for too long. */
function isHeldUp(error: StoreUnavailable): boolean {
  return error instanceof LockTimeout || isContention(error.cause)
}
