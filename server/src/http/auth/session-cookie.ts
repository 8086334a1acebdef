interface CookieOptions {
  basePath: string
  publicUrl: string | null
  tls: object | null
}

export interface SessionCookie {
  name: string
  /** Values of Set-Cookie. */
  set(secret: string, maxAgeSeconds: number): string
  cleared: string
}

/**
 * A name with `__Host-` or `__Secure-` makes browsers refuse the cookie from an insecure page, and with `__Host-` also from
 * another host of the domain. `__Host-` requires the path `/`.
 */
export function createSessionCookie({ basePath, publicUrl, tls }: CookieOptions): SessionCookie {
  const secure = tls !== null || publicUrl?.startsWith('https:') === true
  const prefix = secure ? (basePath === '' ? '__Host-' : '__Secure-') : ''
  const name = `${prefix}ichido-session`
  const set = (value: string, maxAgeSeconds: number) =>
    `${name}=${value}; Path=${basePath || '/'}; Max-Age=${maxAgeSeconds}; HttpOnly; SameSite=Strict${secure ? '; Secure' : ''}`
  return { name, set, cleared: set('', 0) }
}
