/**
 * Characters that a terminal obeys instead of showing them: control characters (ESC and C1 begin commands to it, \r overwrites a line), and
 * the marks that turn the direction of text around, by which a name can look like another one.
 */
const IN_TEXT = /(?![\n\t])[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/gu
const IN_LINE = /[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+/gu

/** Text of others as a terminal may be given it: its lines and tabs stay. */
export function forTerminal(text: string): string {
  return text.replace(IN_TEXT, ' ')
}

/** The same in one line. */
export function lineForTerminal(text: string): string {
  return text.replace(IN_LINE, ' ')
}

/** The same for JSON, which stays the same value: what a terminal would obey is escaped. */
export function jsonForTerminal(json: string): string {
  return json.replace(IN_TEXT, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
