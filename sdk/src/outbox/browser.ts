import { platformWorld } from '../world.ts'
import { AutoOutbox, type AutoOutboxOptions } from './auto-outbox.ts'
import { indexedDbStore } from './indexed-db.ts'
import type { Outbox } from './outbox.ts'
import type { Network, OutboxLock, Tabs } from './ports.ts'

/** The options of `openOutbox`. */
export interface OpenOutboxOptions<Body, Answer>
  extends Pick<AutoOutboxOptions<Body, Answer>, 'send' | 'attemptsMax' | 'onTrouble'> {
  /** The name of the outbox; pages of a site with the same name share it. Use one for each person who uses the browser. */
  name: string
}

/**
 * Opens the outbox of a web page, stored in IndexedDB. It flushes by itself, from one tab at a time.
 *
 * @example
 * const outbox = await openOutbox({
 *   name: 'bookmarks',
 *   send: ({ key, body }, signal) =>
 *     fetch('/v1/bookmarks', {
 *       method: 'POST',
 *       headers: { 'content-type': 'application/json', 'idempotency-key': key },
 *       body: JSON.stringify(body),
 *       signal,
 *     }),
 * })
 * outbox.onChange(async () => render(await outbox.list()))
 * await outbox.put({ url: 'https://example.com/' })
 */
export async function openOutbox<Body = unknown, Answer = unknown>({
  name,
  ...options
}: OpenOutboxOptions<Body, Answer>): Promise<Outbox<Body, Answer>> {
  const named = `ichido-outbox-${name}`
  const store = await indexedDbStore({ name: named, warn: (message) => console.warn(message) })
  return new AutoOutbox({
    ...options,
    store,
    lock: webLock(named),
    network: browserNetwork,
    tabs: openTabs(named),
    world: platformWorld,
  })
}

/** Pages over plain HTTP have no Web Locks. There each tab flushes, and the keys ensure that each item counts once. */
export function webLock(name: string): OutboxLock {
  const { locks } = navigator as Partial<Navigator>
  if (locks === undefined) return turns()
  return (work, signal) => locks.request(name, { signal }, work)
}

/** A browser knows when it is offline, but can only guess that it is online. */
export const browserNetwork: Network = {
  online: () => navigator.onLine,
  onOnline(callback) {
    const onVisible = () => document.visibilityState === 'visible' && callback()
    addEventListener('online', callback)
    document.addEventListener('visibilitychange', onVisible)
    return () => {
      removeEventListener('online', callback)
      document.removeEventListener('visibilitychange', onVisible)
    }
  },
}

/** Connects the tabs that show the same outbox, by a BroadcastChannel. */
export function openTabs(name: string): Tabs {
  const channel = new BroadcastChannel(name)
  let closed = false
  return {
    tell: (change) => closed || channel.postMessage(change),
    onTold(callback) {
      const onMessage = ({ data }: MessageEvent) => callback(data)
      channel.addEventListener('message', onMessage)
      return () => channel.removeEventListener('message', onMessage)
    },
    close() {
      closed = true
      channel.close()
    },
  }
}

/** A lock inside one page. */
export function turns(): OutboxLock {
  let last: Promise<unknown> = Promise.resolve()
  return (work, signal) => {
    const turn = last.then(() => {
      signal.throwIfAborted()
      return work()
    })
    last = turn.catch(() => {})
    return turn
  }
}
