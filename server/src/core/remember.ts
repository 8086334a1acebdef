/** Keeps what is dear to make, up to `max` of them; the one that was made first goes first. */
export function remember<T>(max: number, make: (name: string) => T): (name: string) => T {
  const kept = new Map<string, T>()
  return (name) => {
    const known = kept.get(name)
    if (known !== undefined) return known
    const made = make(name)
    const [oldest] = kept.keys()
    if (kept.size >= max && oldest !== undefined) kept.delete(oldest)
    kept.set(name, made)
    return made
  }
}
