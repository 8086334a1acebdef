import {
  findLastTags,
  type LastTag,
  type Place,
  raiseQueueTimes,
  readLastTags,
  type TagsFor,
} from '../../store/leasing/fair-tags.ts'
import type { Deps } from '../deps.ts'

/** This node learns of the tags of other nodes within this time. */
const KNOWN_MS = 1_000
/** A node shares its last leased tags this often. */
const SHARE_MS = 500
const QUEUES_MAX = 1_000
const USERS_MAX = 10_000

interface QueueTime {
  queue: string
  priority: number
  /** The value of the store. */
  tag: number
  /** The highest tag that was leased here and is not in the store yet; 0: none. */
  leasedTag: number
  users: Map<string, UserTags>
}

interface UserTags {
  lastTag: number
  givenAtMs: number
  /** When the store was last asked. */
  askedAtMs: number
}

/**
 * Ready runs of one priority in a queue are ordered by tag. A new tag is behind the user's own last tag, and not before
 * the time of the queue, which is the last leased tag. So a user with one job comes right after the jobs that are being
 * worked on, not behind all jobs of a user with many. Both values come from the store, so that all nodes agree, and are
 * cached for a second. The jobs of one user and priority keep their order, across nodes up to that second.
 */
export interface FairTags {
  /** Runs in the transaction that makes runs ready. */
  tagsFor: TagsFor
  /** From memory; null: the store must be asked. */
  known(places: readonly Place[]): number[] | null
  /** Asks the store first. */
  find(places: readonly Place[]): Promise<number[]>
  /** A run with this tag was leased. */
  leased(queue: string, tag: number, priority: number): void
  /** Writes the last leased tags for the other nodes. */
  share(): Promise<void>
  /** Shares for the last time. */
  close(): Promise<void>
}

export function createFairTags({ world, store }: Pick<Deps, 'world' | 'store'>): FairTags {
  const queues = new Map<string, QueueTime>()
  let callOffSharing: (() => void) | null = null
  let asking: Promise<unknown> | null = null

  function timeOf(queue: string, priority: number): QueueTime {
    // Each priority has its own time, because a high priority runs ahead of the others.
    const name = `${priority} ${queue}`
    let time = queues.get(name)
    if (time === undefined) {
      if (queues.size >= QUEUES_MAX) forget()
      time = { queue, priority, tag: 0, leasedTag: 0, users: new Map() }
      queues.set(name, time)
    }
    return time
  }

  function forget(): void {
    for (const [name, { leasedTag }] of queues) if (leasedTag === 0) queues.delete(name)
  }

  function isKnown({ queue, userId, priority }: Place, nowMs: number): boolean {
    const user = timeOf(queue, priority).users.get(userId)
    return user !== undefined && nowMs - user.askedAtMs < KNOWN_MS
  }

  function unknown(places: readonly Place[], nowMs: number): Place[] {
    const distinct = new Map<string, Place>()
    for (const place of places) {
      if (!isKnown(place, nowMs)) distinct.set(JSON.stringify([place.queue, place.priority, place.userId]), place)
    }
    return [...distinct.values()]
  }

  function learn(found: readonly LastTag[], askedAtMs: number): void {
    for (const { queue, userId, priority, timeTag, lastTag } of found) {
      const time = timeOf(queue, priority)
      time.tag = timeTag
      const user = time.users.get(userId)
      // The store does not show the tags of a running transaction yet. Tags of a refused submission are forgotten soon.
      const ours = user !== undefined && askedAtMs - user.givenAtMs < KNOWN_MS ? user.lastTag : 0
      if (time.users.size >= USERS_MAX) time.users.clear()
      time.users.set(userId, { givenAtMs: 0, ...user, lastTag: Math.max(lastTag, ours), askedAtMs })
    }
  }

  function give(places: readonly Place[], nowMs: number): number[] {
    return places.map(({ queue, userId, priority }) => {
      const time = timeOf(queue, priority)
      const user = time.users.get(userId) ?? { lastTag: 0, givenAtMs: 0, askedAtMs: Number.NEGATIVE_INFINITY }
      user.lastTag = Math.max(time.tag, time.leasedTag, user.lastTag) + 1
      user.givenAtMs = nowMs
      time.users.set(userId, user)
      return user.lastTag
    })
  }

  /** One call after the other, so that an earlier call gets lower tags. */
  async function ask(places: readonly Place[], before: Promise<unknown> | null): Promise<number[]> {
    await before?.catch(() => {})
    const askedAtMs = world.monotonic()
    const asked = unknown(places, askedAtMs)
    // A write connection, because its planner is forced to use the indexes.
    if (asked.length > 0) learn(await store.write(findLastTags(asked)), askedAtMs)
    return give(places, world.monotonic())
  }

  async function share(): Promise<void> {
    const sent = [...queues.values()].filter(({ leasedTag }) => leasedTag > 0)
    if (sent.length === 0) return
    const times = sent.map(({ queue, priority, leasedTag }) => ({ queue, priority, tag: leasedTag }))
    for (const { queue, priority, tag } of await store.write(raiseQueueTimes(times))) timeOf(queue, priority).tag = tag
    times.forEach(({ tag }, i) => {
      const time = sent[i]
      if (time?.leasedTag === tag) time.leasedTag = 0
    })
  }

  /** Delayed, so that the last lease of a busy time is shared, too. After a failure the next lease tries again. */
  function shareSoon(): void {
    callOffSharing ??= world.after(SHARE_MS, () => {
      callOffSharing = null
      share().catch(() => {})
    })
  }

  return {
    *tagsFor(places) {
      const askedAtMs = world.monotonic()
      learn(yield* readLastTags(unknown(places, askedAtMs)), askedAtMs)
      return give(places, askedAtMs)
    },
    known(places) {
      if (asking !== null) return null
      const nowMs = world.monotonic()
      return places.every((place) => isKnown(place, nowMs)) ? give(places, nowMs) : null
    },
    find(places) {
      const found = ask(places, asking)
      asking = found
      const settled = () => {
        if (asking === found) asking = null
      }
      found.then(settled, settled)
      return found
    },
    leased(queue, tag, priority) {
      const time = timeOf(queue, priority)
      if (tag <= Math.max(time.tag, time.leasedTag)) return
      time.leasedTag = tag
      shareSoon()
    },
    share,
    async close() {
      callOffSharing?.()
      callOffSharing = null
      await share().catch(() => {})
    },
  }
}
