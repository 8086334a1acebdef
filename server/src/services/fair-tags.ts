import { findQueueHead } from '../store/commands/queues.ts'
import type { Deps } from './deps.ts'

/** How old what a node knows of a queue's time may be while it gives out tags for it. */
const REFRESH_MS = 1_000
const QUEUES_MAX = 1_000
const USERS_MAX = 10_000

interface QueueTime {
  /** How far the queue has got: no tag that is given out lies before it. Null until it is known. */
  atTag: number | null
  /** The first and the last one that were given out before it was; 0: none. */
  early: { first: number; last: number }
  lastTags: Map<string, number>
  refreshAtMs: number
}

export interface FairTags {
  /**
   * A user's next tag among the runs of one priority in a queue, by which they are ordered: behind the user's own last one, and not
   * before what the queue is at. So a user with one job comes right after what is being worked on, not behind all jobs of
   * a user with many. Kept in memory: nodes agree only roughly, and a node that was restarted gives a user a new start.
   */
  tagFor(queue: string, userId: string, priority: number): number
  /** A run with this tag was leased. */
  leased(queue: string, tag: number, priority: number): void
}

export function createFairTags({ world, store }: Pick<Deps, 'world' | 'store'>): FairTags {
  const queues = new Map<string, QueueTime>()

  // Each priority has a time of its own: a high one runs ahead of what the others are at.
  const nameOf = (queue: string, priority: number) => `${priority} ${queue}`

  function timeOf(name: string): QueueTime {
    let time = queues.get(name)
    if (time === undefined) {
      if (queues.size >= QUEUES_MAX) queues.clear()
      time = { atTag: null, early: { first: 0, last: 0 }, lastTags: new Map(), refreshAtMs: world.monotonic() }
      queues.set(name, time)
    }
    return time
  }

  async function refresh(queue: string, priority: number, time: QueueTime): Promise<void> {
    const tag = await store.read(findQueueHead(queue, priority)).catch(() => undefined)
    if (tag === undefined) return
    // What was given out early lies behind a backlog; who got some of it must not wait there with all that comes.
    if (time.atTag === null && tag !== null && tag < time.early.first) time.lastTags.clear()
    // Nothing waits: the queue has caught up with the clock. Tags are of the clock's size, so that nodes which have not
    // met in a queue begin at the same place.
    time.atTag = Math.max(time.atTag ?? 0, tag ?? world.now())
  }

  function nextTag(time: QueueTime, userId: string): number {
    if (time.atTag !== null) return Math.max(time.atTag, time.lastTags.get(userId) ?? 0) + 1
    const { early } = time
    early.last = Math.max(world.now(), early.last + 1)
    early.first ||= early.last
    return early.last
  }

  return {
    tagFor(queue, userId, priority) {
      const time = timeOf(nameOf(queue, priority))
      const nowMs = world.monotonic()
      if (nowMs >= time.refreshAtMs) {
        time.refreshAtMs = nowMs + REFRESH_MS
        void refresh(queue, priority, time)
      }
      const tag = nextTag(time, userId)
      if (time.lastTags.size >= USERS_MAX) time.lastTags.clear()
      time.lastTags.set(userId, tag)
      return tag
    },
    leased(queue, tag, priority) {
      const time = queues.get(nameOf(queue, priority))
      if (time !== undefined) time.atTag = Math.max(time.atTag ?? 0, tag)
    },
  }
}
