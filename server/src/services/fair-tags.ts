import { findQueueHead } from '../store/commands/queues.ts'
import type { Deps } from './deps.ts'

/** How old what a node knows of a queue's time may be while it gives out tags for it. */
const REFRESH_MS = 1_000
const QUEUES_MAX = 1_000
const USERS_MAX = 10_000

interface QueueTime {
  /** How far the queue has got: no tag that is given out lies before it. Null until it is known. */
  atTag: number | null
  /** The last one that was given out before it was. */
  firstTag: number
  lastTags: Map<string, number>
  refreshAtMs: number
}

export interface FairTags {
  /**
   * A user's next tag in a queue, by which its runs of one priority are ordered: behind the user's own last one, and not
   * before what the queue is at. So a user with one job comes right after what is being worked on, not behind all jobs of
   * a user with many. Kept in memory: nodes agree only roughly, and a node that was restarted gives a user a new start.
   */
  tagFor(queue: string, userId: string): number
  /** A run with this tag was leased. */
  leased(queue: string, tag: number): void
}

export function createFairTags({ world, store }: Pick<Deps, 'world' | 'store'>): FairTags {
  const queues = new Map<string, QueueTime>()

  function timeOf(queue: string): QueueTime {
    let time = queues.get(queue)
    if (time === undefined) {
      if (queues.size >= QUEUES_MAX) queues.clear()
      time = { atTag: null, firstTag: 0, lastTags: new Map(), refreshAtMs: world.monotonic() }
      queues.set(queue, time)
    }
    return time
  }

  async function refresh(queue: string, time: QueueTime): Promise<void> {
    const tag = await store.read(findQueueHead(queue)).catch(() => null)
    // Nothing waits: the queue has caught up with the clock. Tags are of the clock's size, so that nodes which have not
    // met in a queue begin at the same place.
    time.atTag = Math.max(time.atTag ?? 0, tag ?? world.now())
  }

  return {
    tagFor(queue, userId) {
      const time = timeOf(queue)
      const nowMs = world.monotonic()
      if (nowMs >= time.refreshAtMs) {
        time.refreshAtMs = nowMs + REFRESH_MS
        void refresh(queue, time)
      }
      if (time.atTag === null) {
        time.firstTag = Math.max(world.now(), time.firstTag + 1)
        return time.firstTag
      }
      const tag = Math.max(time.atTag, time.lastTags.get(userId) ?? 0) + 1
      if (time.lastTags.size >= USERS_MAX) time.lastTags.clear()
      time.lastTags.set(userId, tag)
      return tag
    },
    leased(queue, tag) {
      const time = queues.get(queue)
      if (time !== undefined) time.atTag = Math.max(time.atTag ?? 0, tag)
    },
  }
}
