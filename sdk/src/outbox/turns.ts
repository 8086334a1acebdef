import type { OutboxLock } from './ports.ts'

/** One after the other, among those who share it. */
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
