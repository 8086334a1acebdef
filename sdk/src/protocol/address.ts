const CREDENTIALS = /^(\w+:\/\/)?[^/?#:]*(?::([^/?#]*))?@/

/** An address may be shown to people; a token in it may not, and `fetch` refuses an address that has one. */
export function withoutCredentials(url: string): string {
  return url.replace(CREDENTIALS, '$1')
}

/** The token that an address has as its password: `https://ci:TOKEN@host`. */
export function tokenIn(url: string): string | undefined {
  const password = CREDENTIALS.exec(url)?.[2]
  // Other characters are percent-encoded; no token needs that.
  if (!password || /^[\w.~-]+$/.test(password)) return password || undefined
  throw new TypeError(`${withoutCredentials(url)} was given with a password that is not a token`)
}
