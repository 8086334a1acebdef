export type Token =
  | { type: 'text'; text: string }
  | { type: 'open'; name: string; attributes: Map<string, string> }
  | { type: 'close'; name: string }

/** The content of these elements is not markup, up to their closing tag. */
const RAW = new Set(['script', 'style', 'noscript', 'template', 'textarea', 'title', 'iframe', 'noembed', 'xmp'])
/** Elements whose raw text is for readers. */
const READ_RAW = new Set(['title', 'textarea'])
const TAG = /<(\/?)([a-zA-Z][^\s/>]*)/y
const ATTRIBUTE = /[\s/]*([^\s/>=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']*)))?/y

/** Splits a page into tags and text. It ends in one pass for any input, and everything that is not a tag is text. */
export function* tokensOf(html: string): Generator<Token> {
  let at = 0
  while (at < html.length) {
    const begin = html.indexOf('<', at)
    if (begin < 0) {
      yield { type: 'text', text: decodeEntities(html.slice(at)) }
      return
    }
    if (begin > at) yield { type: 'text', text: decodeEntities(html.slice(at, begin)) }
    if (html.startsWith('<!--', begin)) at = after(html, '-->', begin + 4)
    else if (html.startsWith('<!', begin) || html.startsWith('<?', begin)) at = after(html, '>', begin + 2)
    else {
      TAG.lastIndex = begin
      const found = TAG.exec(html)
      if (found === null) {
        yield { type: 'text', text: '<' }
        at = begin + 1
        continue
      }
      const [all, slash, written = ''] = found
      const name = written.toLowerCase()
      const { attributes, end } = readAttributes(html, begin + all.length)
      at = end
      if (slash === '/') yield { type: 'close', name }
      else {
        yield { type: 'open', name, attributes }
        if (RAW.has(name)) {
          const close = indexOfClose(html, name, at)
          if (READ_RAW.has(name)) yield { type: 'text', text: decodeEntities(html.slice(at, close)) }
          at = close
        }
      }
    }
  }
}

function after(html: string, text: string, from: number): number {
  const found = html.indexOf(text, from)
  return found < 0 ? html.length : found + text.length
}

function indexOfClose(html: string, name: string, from: number): number {
  const close = new RegExp(`</${name}[\\s/>]`, 'gi')
  close.lastIndex = from
  return close.exec(html)?.index ?? html.length
}

function readAttributes(html: string, from: number): { attributes: Map<string, string>; end: number } {
  const attributes = new Map<string, string>()
  let at = from
  while (at < html.length) {
    ATTRIBUTE.lastIndex = at
    const found = ATTRIBUTE.exec(html)
    if (found === null) break
    const [all, name = '', double, single, bare] = found
    const value = decodeEntities(double ?? single ?? bare ?? '')
    if (!attributes.has(name.toLowerCase())) attributes.set(name.toLowerCase(), value)
    at += all.length
  }
  return { attributes, end: after(html, '>', at) }
}

const NAMED: Record<string, string> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: ' ',
  ensp: ' ',
  emsp: ' ',
  thinsp: ' ',
  shy: '',
  zwnj: '',
  zwj: '',
  copy: '©',
  reg: '®',
  trade: '™',
  hellip: '…',
  mdash: '—',
  ndash: '–',
  lsquo: '‘',
  rsquo: '’',
  ldquo: '“',
  rdquo: '”',
  laquo: '«',
  raquo: '»',
  bull: '•',
  middot: '·',
  times: '×',
  deg: '°',
  euro: '€',
  pound: '£',
  yen: '¥',
  sect: '§',
  eacute: 'é',
  egrave: 'è',
  agrave: 'à',
  ccedil: 'ç',
  auml: 'ä',
  ouml: 'ö',
  uuml: 'ü',
  Auml: 'Ä',
  Ouml: 'Ö',
  Uuml: 'Ü',
  szlig: 'ß',
  ntilde: 'ñ',
}

/** Decodes the names that are common in text, and leaves the others unchanged. */
export function decodeEntities(text: string): string {
  if (!text.includes('&')) return text
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#(\d{1,7})|([a-z]{2,8}));?/gi, (written, hex, decimal, name) => {
    if (name !== undefined) return NAMED[name] ?? written
    const code = hex === undefined ? Number(decimal) : Number.parseInt(hex, 16)
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : '\ufffd'
  })
}
