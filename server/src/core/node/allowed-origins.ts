/** Which pages of other sites may call the server from a browser. */
export interface AllowedOrigins {
  /** These may send a token. */
  exact: ReadonlySet<string>
  /** `*`: every other page may call what needs no token. */
  any: boolean
}

export const ORIGIN_EXAMPLE = 'https://app.example.org'

/** Reads a list separated by commas; `wrong` is the first part that is no origin. */
export function parseAllowedOrigins(text: string): AllowedOrigins | { wrong: string } {
  const parts = text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
  const exact = parts.filter((part) => part !== '*')
  const wrong = exact.find((part) => !isOrigin(part))
  if (wrong !== undefined) return { wrong }
  return { exact: new Set(exact), any: exact.length < parts.length }
}

/** As browsers write it in the header Origin: anything else would never match. */
function isOrigin(text: string): boolean {
  return /^https?:\/\//.test(text) && URL.canParse(text) && new URL(text).origin === text
}
