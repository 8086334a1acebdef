import { countWorkerLeases } from '../../store/leasing/leased.ts'
import type { Deps } from '../deps.ts'
import { maximumReached, setBounded } from '../limits/maximum.ts'

const setting = 'leases_per_worker_max'
/**
 * When a worker has leased this share of the maximum since the last count, its leases are counted again in the
 * background.
 */
const UNCOUNTED_SHARE = 0.1
/** Beyond this, the worker that asked first is dropped, and counted again when it comes back. */
const WORKERS_MAX = 10_000
const RETRY_AFTER_MS = 5_000

/** The leases of a worker, as this node knows them. The sum is never less than what this node has granted. */
interface Holding {
  /** The number in the store, by the last count that began. */
  counted: number
  /** How many leases this node had granted when that count began. */
  leasedBefore: number
  /** How many leases this node has granted by now. */
  leased: number
  /** Leases that open polls have asked for. */
  asked: number
  counting: Promise<void> | null
}

interface Room {
  /** How many leases may be granted; 0: only those of an earlier answer to the same poll. */
  readonly max: number
  /** Reports how many leases were granted. */
  settle(leased: number): void
}

/**
 * Limits the leases of a worker. It counts in the store only after a worker has leased a tenth of the maximum since the
 * last count, because finished runs are not subtracted in between. On one node the limit is exact. With other nodes, a
 * worker can exceed it by a tenth of the maximum for each node, and by the leases during a count.
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
      // A running count may have missed a run that has just ended.
      await holding.counting?.catch(() => {})
      await this.#count(workerId, holding)
    } else if (uncounted() + wanted > max * UNCOUNTED_SHARE && holding.counting === null) {
      // After an outage the next call counts again.
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

  /** The refusal of a worker that holds the maximum. */
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
    const holding = { counted: 0, leasedBefore: 0, leased: 0, asked: 0, counting: null }
    setBounded(this.#holdings, WORKERS_MAX, workerId, holding)
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
