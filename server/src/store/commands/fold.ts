/** Splits a batch into the first item of each name and those that come after it, which must see what it did. */
export function foldBy<T>(items: readonly T[], nameOf: (item: T) => string): { firsts: T[]; repeats: [T, T][] } {
  const firstOf = new Map<string, T>()
  const repeats: [T, T][] = []
  for (const item of items) {
    const name = nameOf(item)
    const first = firstOf.get(name)
    if (first === undefined) firstOf.set(name, item)
    else repeats.push([item, first])
  }
  return { firsts: [...firstOf.values()], repeats }
}
