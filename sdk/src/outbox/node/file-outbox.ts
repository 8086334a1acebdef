import { platformWorld, type Timers } from '../../world.ts'
import { AutoOutbox, type AutoOutboxOptions } from '../auto-outbox.ts'
import type { Outbox } from '../outbox.ts'
import type { Network, OutboxLock } from '../ports.ts'
import { FileStore, type FileStoreOptions } from './file-store.ts'
import { FileLock } from './lock.ts'

export { FileStore, type FileStoreOptions }

/** The options of `openFileOutbox`. */
export interface FileOutboxOptions<Body, Answer>
  extends Pick<AutoOutboxOptions<Body, Answer>, 'send' | 'attemptsMax' | 'onTrouble'> {
  /** The file of the outbox; processes that name the same file share it. */
  path: string
  /** Called with a sentence about items that could not be read and the file that holds them now. */
  warn(message: string): void
}

/**
 * Opens the outbox of a program, stored in a file. It flushes by itself, from one process at a time, until it is closed.
 *
 * @example
 * const outbox = openFileOutbox({
 *   path: 'outbox.jsonl',
 *   send: sendJobs(httpTransport({ url: 'http://127.0.0.1:8001', retry: { tries: 1 } })),
 *   warn: (message) => console.warn(message),
 * })
 * await outbox.put({ kind: 'resize', payload: { width: 80 } })
 */
export function openFileOutbox<Body = unknown, Answer = unknown>({
  path,
  warn,
  ...options
}: FileOutboxOptions<Body, Answer>): Outbox<Body, Answer> {
  const world = platformWorld
  const store = new FileStore({ path, world, warn })
  return new AutoOutbox({ ...options, store, lock: fileFlushLock(path, world), network: nodeNetwork, world })
}

/** Makes the lock that the flushing process holds. */
export function fileFlushLock(path: string, timers: Timers): OutboxLock {
  const lock = new FileLock(`${path}.flush-lock`, timers)
  return (work, signal) => lock.run(work, signal)
}

/** A program cannot know whether the network works; it finds out by trying. */
export const nodeNetwork: Network = { online: () => true, onOnline: () => () => {} }
