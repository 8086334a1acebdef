/**
 * A reading that begins after it was asked for, and that all share who ask before it begins. One is under way at a time:
 * whoever asks meanwhile waits for the next one, because this one may have looked before.
 */
export function freshRead<T>(read: () => Promise<T>): () => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  let next: Promise<T> | null = null
  return () => {
    next ??= last.then(() => {
      next = null
      const reading = read()
      last = reading.catch(() => {})
      return reading
    })
    return next
  }
}
