/** As a share of the pairs of both; the same word has a half. A slip of the finger or half of the name has more than this. */
const NEAR = 0.15

/** Of the names the one that shares the most pairs of letters with what was typed, for its length (Dice); none, if all are far. */
export function nearest(typed: string, names: readonly string[]): string | undefined {
  const wanted = pairs(typed)
  const likeness = (name: string) => {
    const found = pairs(name)
    return [...found].filter((pair) => wanted.has(pair)).length / (found.size + wanted.size)
  }
  return names.filter((name) => likeness(name) >= NEAR).toSorted((a, b) => likeness(b) - likeness(a))[0]
}

function pairs(text: string): Set<string> {
  return new Set(Array.from(text, (letter, i) => letter + (text[i + 1] ?? '')))
}
