/**
 * Characters that a terminal interprets instead of showing them: control characters (ESC and C1 begin commands, \r overwrites a
 * line), and direction marks, with which a name can look like another one.
 */
const IN_TEXT = /(?![\n\t])[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/gu
const IN_LINE = /[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+/gu

/** Makes foreign text safe for a terminal; keeps lines and tabs. */
export function forTerminal(text: string): string {
  return text.replace(IN_TEXT, ' ')
}

/** Makes foreign text safe for a terminal, in one line. */
export function lineForTerminal(text: string): string {
  return text.replace(IN_LINE, ' ')
}

/** Escapes the unsafe characters of JSON text; its value stays the same. */
export function jsonForTerminal(json: string): string {
  return json.replace(IN_TEXT, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
