import { sleep, type World } from '@ichido/sdk/world'
import type { FastifyBaseLogger } from 'fastify'
import { StoreUnavailable } from './store/port.ts'

export interface TroubleLogOptions {
  logger: Pick<FastifyBaseLogger, 'warn'>
  world: Pick<World, 'monotonic' | 'after'>
  /** Settles when the store answers. */
  askStore(): Promise<unknown>
}

const SAY_AGAIN_MS = 60_000
const SAID_MAX = 1_000
const LOOK_MS = 1_000

/**
 * What goes wrong outside of any request. Everything that works in the background meets the same trouble, again and again: it
 * is said once a minute, and of a store that is away once for everybody, until it answers again.
 */
export class TroubleLog {
  readonly #options: TroubleLogOptions
  readonly #saidAtMs = new Map<string, number>()
  #storeAway = false

  constructor(options: TroubleLogOptions) {
    this.#options = options
  }

  readonly on = (where: string, error: unknown): void => {
    const { logger, world } = this.#options
    if (error instanceof StoreUnavailable) return void this.#awaitStore(where, error)
    const name = `${where}: ${String(error)}`
    const nowMs = world.monotonic()
    if (nowMs - (this.#saidAtMs.get(name) ?? Number.NEGATIVE_INFINITY) < SAY_AGAIN_MS) return
    if (this.#saidAtMs.size >= SAID_MAX) this.#saidAtMs.clear()
    this.#saidAtMs.set(name, nowMs)
    logger.warn({ where, err: error }, 'trouble')
  }

  async #awaitStore(where: string, { message }: StoreUnavailable): Promise<void> {
    if (this.#storeAway) return
    this.#storeAway = true
    const { logger, world, askStore } = this.#options
    logger.warn({ where, why: message }, 'the store is out of reach')
    const answers = () =>
      askStore().then(
        () => true,
        () => false,
      )
    while (!(await answers())) await sleep(world, LOOK_MS)
    this.#storeAway = false
    logger.warn('the store answers again')
  }
}
