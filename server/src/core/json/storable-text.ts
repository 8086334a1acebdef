/** What every store can hold: PostgreSQL has no NUL, and half of a surrogate pair is no UTF-8. */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\u0000')
}

/** For text that is only read by people: U+FFFD in the place of what cannot be stored. */
export function storableText(text: string): string {
  return text.toWellFormed().replaceAll('\u0000', '\ufffd')
}
