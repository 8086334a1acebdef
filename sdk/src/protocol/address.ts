const CREDENTIALS = /^(\w+:\/\/)?[^/?#:]*(?::([^/?#]*))?@/

/** The URL without its token, for messages and for `fetch`, which refuses a URL with a password. */
export function withoutCredentials(url: string): string {
  return url.replace(CREDENTIALS, '$1')
}

/** The token that a URL has as its password: `https://ci:TOKEN@host`. */
export function tokenIn(url: string): string | undefined {
  const password = CREDENTIALS.exec(url)?.[2]
  // Other characters are percent-encoded; no token needs that.
  if (!password || /^[\w.~-]+$/.test(password)) return password || undefined
  throw new TypeError(`${withoutCredentials(url)} has a password that is not a token`)
}
