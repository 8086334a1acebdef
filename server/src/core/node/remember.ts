/** Caches up to `max` results of an expensive function. The oldest is dropped first. */
export function remember<Name, T>(max: number, make: (name: Name) => T): (name: Name) => T {
  const kept = new Map<Name, T>()
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
