import { countWorkerLeases } from '../../store/leasing/worker-leases.ts'
import type { Deps } from '../deps.ts'
import { maximumReached } from '../limits/maximum.ts'

const setting = 'leases_per_worker_max'
/** Of the maximum: when so many were leased since the last count, they are counted again, and nobody waits for it. */
const UNCOUNTED_SHARE = 0.1
/** The one that asked first is forgotten first, and counted anew when it comes again. */
const WORKERS_MAX = 10_000
const RETRY_AFTER_MS = 5_000

/** What this node knows of the leases of a worker. Their sum is never less than what this node let it have. */
interface Holding {
  /** By the store, in the last count that began. */
  counted: number
  /** How many it had got from this node when that count began. */
  leasedBefore: number
  /** How many it has got from this node by now. */
  leased: number
  /** By polls that have not been answered. */
  asked: number
  counting: Promise<void> | null
}

interface Room {
  /** How many of those that were asked for may be leased; 0: none but those of an earlier answer to the same poll. */
  readonly max: number
  /** So many were. */
  settle(leased: number): void
}

/**
 * How many more leases a worker may have. The store is asked only once a worker has leased a tenth of the maximum since the
 * last time: what it finishes, here or elsewhere, is not counted before. Of one node it is exact. What other nodes hand out
 * between two counts comes on top: a tenth of the maximum for each of them, and what they lease during a count.
 */
export class LeaseRoom {
  readonly #deps: Pick<Deps, 'store' | 'settings' | 'meter'>
  readonly #holdings = new Map<string, Holding>()

  constructor(deps: Pick<Deps, 'store' | 'settings' | 'meter'>) {
    this.#deps = deps
  }

  async take(workerId: string, wanted: number): Promise<Room> {
    const max = this.#deps.settings.get(setting)
    const holding = this.#holdingOf(workerId)
    const uncounted = () => holding.leased - holding.leasedBefore
    const free = () => max - holding.counted - uncounted() - holding.asked
    if (free() < wanted) {
      // One that is under way may have missed what has just ended.
      await holding.counting?.catch(() => {})
      await this.#count(workerId, holding)
    } else if (uncounted() + wanted > max * UNCOUNTED_SHARE && holding.counting === null) {
      // A store that does not answer is asked again by the next.
      this.#count(workerId, holding).catch(() => {})
    }
    const granted = Math.max(0, Math.min(wanted, free()))
    holding.asked += granted
    return {
      max: granted,
      settle(leased) {
        holding.asked -= granted
        holding.leased += leased
      },
    }
  }

  /** For a worker that has no room left. */
  refusal(workerId: string) {
    return maximumReached(this.#deps, {
      setting,
      says: (max) => `${workerId} holds ${max} leases or has asked for them, which is the maximum`,
      advice: 'finish or release some',
      retryAfterMs: RETRY_AFTER_MS,
    })
  }

  #holdingOf(workerId: string): Holding {
    const known = this.#holdings.get(workerId)
    if (known !== undefined) return known
    if (this.#holdings.size >= WORKERS_MAX) {
      const [oldest] = this.#holdings.keys()
      if (oldest !== undefined) this.#holdings.delete(oldest)
    }
    const holding = { counted: 0, leasedBefore: 0, leased: 0, asked: 0, counting: null }
    this.#holdings.set(workerId, holding)
    return holding
  }

  #count(workerId: string, holding: Holding): Promise<void> {
    const { leased } = holding
    const max = this.#deps.settings.get(setting)
    const counting = this.#deps.store
      .read(countWorkerLeases(workerId, max))
      .then((held) => {
        if (leased < holding.leasedBefore) return
        holding.counted = held
        holding.leasedBefore = leased
      })
      .finally(() => {
        if (holding.counting === counting) holding.counting = null
      })
    holding.counting = counting
    return counting
  }
}
