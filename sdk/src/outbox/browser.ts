import { platformWorld } from '../world.ts'
import { AutoOutbox, type AutoOutboxOptions } from './auto-outbox.ts'
import { indexedDbStore } from './indexed-db.ts'
import type { Outbox } from './outbox.ts'
import type { Network, OutboxLock, Tabs } from './ports.ts'
import { turns } from './turns.ts'

export interface OpenOutboxOptions<Body, Answer>
  extends Pick<AutoOutboxOptions<Body, Answer>, 'send' | 'attemptsMax' | 'onTrouble'> {
  /** Of the outbox: pages of a site that use the same name share it. Where several people use a browser, one for each. */
  name: string
}

/**
 * The outbox of a web page, kept in IndexedDB. It flushes by itself, from one tab at a time.
 *
 * ```ts
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
 * ```
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

/** Pages that came over plain HTTP have no Web Locks: there each tab flushes, and the keys alone make it one delivery. */
export function webLock(name: string): OutboxLock {
  const { locks } = navigator as Partial<Navigator>
  if (locks === undefined) return turns()
  return (work, signal) => locks.request(name, { signal }, work)
}

/** That it is offline a browser knows; that it is online it only believes. */
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
