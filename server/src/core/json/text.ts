/** Cuts text to at most `max` characters, and ends cut text with "…". No character is cut in half. */
export function clip(text: string, max: number): string {
  return text.length <= max ? text : `${text.slice(0, max - 1).toWellFormed()}…`
}

/** The longest part of a field's name that is shown. */
const PART_MAX = 101
/** The longest field name that is shown: it may have 64 levels. */
const FIELD_MAX = 301

/** Names a place in a request, for people and for `details.field`. */
export function fieldName(path: readonly PropertyKey[]): string {
  return clip(path.map(partName).join('.'), FIELD_MAX)
}

/** A member with the empty name is shown as `""`, to distinguish it from its object. */
function partName(part: PropertyKey): string {
  return part === '' ? '""' : clip(String(part), PART_MAX)
}

/** True if every store can hold the text: PostgreSQL has no NUL, and half of a surrogate pair is not UTF-8. */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\u0000')
}

/** Puts U+FFFD in place of characters that cannot be stored. Use it only for text that people read. */
export function storableText(text: string): string {
  return text.toWellFormed().replaceAll('\u0000', '\ufffd')
}

/** The lowest likeness. The same word has 0.5; a typo or half of the name has more than this. */
const NEAR = 0.15

/**
 * Finds the name with the most letter pairs in common with the typed word, relative to their length (Dice); undefined
 * if none is near.
 */
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
