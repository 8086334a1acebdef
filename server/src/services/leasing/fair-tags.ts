import {
  findLastTags,
  type LastTag,
  type Place,
  type QueueTime,
  raiseQueueTimes,
  type Tagged,
  timeName,
} from '../../store/leasing/fair-tags.ts'
import type { Deps } from '../deps.ts'

/** This node learns of the tags of other nodes within this time. */
const KNOWN_MS = 1_000
/** A node shares its last leased tags this often. */
const SHARE_MS = 500
const QUEUES_MAX = 1_000
const USERS_MAX = 10_000

interface CachedTime extends QueueTime {
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

const UNKNOWN: UserTags = {
  lastTag: 0,
  givenAtMs: Number.NEGATIVE_INFINITY,
  askedAtMs: Number.NEGATIVE_INFINITY,
}

/** The store does not show the tags of a running transaction yet. Tags of a refused submission are forgotten soon. */
function recentTag({ lastTag, givenAtMs, askedAtMs }: UserTags, nowMs: number): number {
  return nowMs - Math.max(givenAtMs, askedAtMs) < KNOWN_MS ? lastTag : 0
}

/**
 * Ready runs of one priority in a queue are ordered by tag. A new tag is behind the user's own last tag, and not before
 * the time of the queue, which is the last leased tag. So a user with one job comes right after the jobs that are being
 * worked on, not behind all jobs of a user with many. Both values come from the store, so that all nodes agree, and are
 * cached for a second. The jobs of one user and priority keep their order, across nodes up to that second.
 */
export interface FairTags {
  /** Gives tags from memory; null: the store must be asked. */
  known<P extends Place>(places: readonly P[]): Tagged<P>[] | null
  /** Asks the store first. */
  find<P extends Place>(places: readonly P[]): Promise<Tagged<P>[]>
  /**
   * For a command that gives the tags itself, in its transaction. The command takes the times that this node has not shared yet,
   * and `tagsIn` finds the tags in its answer.
   */
  learnFrom<T>(run: (leased: readonly QueueTime[]) => Promise<T>, tagsIn: (answer: T) => readonly Tagged[]): Promise<T>
  /** A run with this tag was leased. */
  leased(queue: string, tag: number, priority: number): void
  /** Writes the last leased tags for the other nodes. */
  share(): Promise<void>
  /** Shares for the last time. */
  close(): Promise<void>
}

export function createFairTags({ world, store }: Pick<Deps, 'world' | 'store'>): FairTags {
  const queues = new Map<string, CachedTime>()
  let callOffSharing: (() => void) | null = null
  let asking: Promise<unknown> | null = null

  function timeOf({ queue, priority }: Pick<Place, 'queue' | 'priority'>): CachedTime {
    const name = timeName({ queue, priority })
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

  function isKnown(place: Place, nowMs: number): boolean {
    return nowMs - tagsOf(timeOf(place), place).askedAtMs < KNOWN_MS
  }

  function tagsOf({ users }: CachedTime, { userId }: Place): UserTags {
    return users.get(userId) ?? UNKNOWN
  }

  function remember({ users }: CachedTime, { userId }: Place, tags: UserTags): void {
    if (users.size >= USERS_MAX && !users.has(userId)) users.clear()
    users.set(userId, tags)
  }

  function learn(found: readonly LastTag[], askedAtMs: number): void {
    for (const place of found) {
      const time = timeOf(place)
      time.tag = place.timeTag
      const user = tagsOf(time, place)
      remember(time, place, { ...user, lastTag: Math.max(place.lastTag, recentTag(user, askedAtMs)), askedAtMs })
    }
  }

  /** The command did not know the tags that were given here meanwhile. So each of its runs moves its user on by at least one. */
  function learnGiven(tagged: readonly Tagged[], askedAtMs: number): void {
    const givenAtMs = world.monotonic()
    for (const place of tagged.toSorted((a, b) => a.fairTag - b.fairTag)) {
      const time = timeOf(place)
      const lastTag = Math.max(place.fairTag, recentTag(tagsOf(time, place), askedAtMs) + 1)
      remember(time, place, { lastTag, givenAtMs, askedAtMs })
    }
  }

  function give<P extends Place>(places: readonly P[], givenAtMs: number): Tagged<P>[] {
    return places.map((place) => {
      const time = timeOf(place)
      const { lastTag, askedAtMs } = tagsOf(time, place)
      const fairTag = Math.max(time.tag, time.leasedTag, lastTag) + 1
      remember(time, place, { lastTag: fairTag, givenAtMs, askedAtMs })
      return { ...place, fairTag }
    })
  }

  /** One call after the other, so that an earlier call gets lower tags. */
  async function ask<P extends Place>(places: readonly P[], before: Promise<unknown> | null): Promise<Tagged<P>[]> {
    await before?.catch(() => {})
    const askedAtMs = world.monotonic()
    const asked = places.filter((place) => !isKnown(place, askedAtMs))
    // A write connection, because its planner is forced to use the indexes.
    if (asked.length > 0) learn(await store.write(findLastTags(asked)), askedAtMs)
    return give(places, world.monotonic())
  }

  function unshared(): QueueTime[] {
    return [...queues.values()].flatMap(({ queue, priority, leasedTag }) =>
      leasedTag > 0 ? [{ queue, priority, tag: leasedTag }] : [],
    )
  }

  async function share(): Promise<void> {
    const sent = unshared()
    if (sent.length === 0) return
    for (const time of await store.write(raiseQueueTimes(sent))) timeOf(time).tag = time.tag
    for (const { tag, ...place } of sent) {
      const time = timeOf(place)
      if (time.leasedTag === tag) time.leasedTag = 0
    }
  }

  /** Delayed, so that the last lease of a busy time is shared, too. After a failure the next lease tries again. */
  function shareSoon(): void {
    callOffSharing ??= world.after(SHARE_MS, () => {
      callOffSharing = null
      share().catch(() => {})
    })
  }

  return {
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
    async learnFrom(run, tagsIn) {
      const askedAtMs = world.monotonic()
      const answer = await run(unshared())
      learnGiven(tagsIn(answer), askedAtMs)
      return answer
    },
    leased(queue, tag, priority) {
      const time = timeOf({ queue, priority })
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
