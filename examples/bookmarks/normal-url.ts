/** Parameters that tell where a visitor came from, not which page it is. */
const TRACKING =
  /^(utm_\w+|fbclid|gclid|dclid|gbraid|wbraid|msclkid|yclid|twclid|igshid|igsh|mc_cid|mc_eid|_ga|_gl|ref_src)$/i
const UNRESERVED = /[\w.~-]/
const LENGTH_MAX = 2_048

/** Gives each page one spelling, so that a page saved twice is one bookmark. Throws the reason why an address is invalid. */
export function normalUrl(text: string): string {
  if (text.length > LENGTH_MAX) throw new TypeError(`must be at most ${LENGTH_MAX} characters`)
  const url = URL.parse(text.trim())
  if (url === null) throw new TypeError('must be the address of a page, such as https://example.org/page')
  if (url.protocol !== 'http:' && url.protocol !== 'https:') throw new TypeError('must begin with http:// or https://')
  if (url.username !== '' || url.password !== '') throw new TypeError('must have no name or password in it')
  url.hash = ''
  url.hostname = url.hostname.replace(/\.$/, '')
  for (const name of [...url.searchParams.keys()]) if (TRACKING.test(name)) url.searchParams.delete(name)
  url.searchParams.sort()
  url.pathname = unescaped(url.pathname)
  return url.href.replace(/\?$/, '')
}

/** `%7e` and `~` are the same letter. Necessary escapes are written in capitals. */
function unescaped(path: string): string {
  return path.replace(/%([0-9a-f]{2})/gi, (escaped, hex: string) => {
    const letter = String.fromCharCode(Number.parseInt(hex, 16))
    return UNRESERVED.test(letter) ? letter : escaped.toUpperCase()
  })
}
