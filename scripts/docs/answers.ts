// Compares the output that a page shows with the real output. Values that differ from run to run, such as ids, times and
// durations, only need the same format, and `…` stands for anything.

const UUID = '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}'
const VARYING = [
  UUID,
  String.raw`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z`,
  String.raw`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?`,
  String.raw`\d+(?:\.\d+)? ?(?:ms|s|seconds?)\b`,
  String.raw`\bprocess \d+`,
  String.raw`ichido_[a-z]+_[\w-]+`,
]
/** An id may be abbreviated. */
const PIECE = new RegExp(`(?:\\b[0-9a-f]{8}-)?…|${VARYING.join('|')}`, 'g')

/** Returns null if they agree, otherwise the difference. */
export function differenceOfText(shown: string, got: string): string | null {
  const [want, have] = [tidy(shown), tidy(got)]
  return new RegExp(`^${patternOf(want)}$`).test(have) ? null : `shown:\n${want}\ngot:\n${have}`
}

export function differenceOfJson(shown: string, got: string): string | null {
  const where = findDifference(JSON.parse(shown), parse(got), '')
  return where === null ? null : `${where}\nshown:\n${shown}\ngot:\n${got}`
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** The width of columns depends on their content. */
function tidy(text: string): string {
  return text
    .split('\n')
    .map((line) => line.trim().replaceAll(/ {2,}/g, '  '))
    .join('\n')
    .trim()
}

function patternOf(text: string): string {
  let pattern = ''
  let from = 0
  for (const match of text.matchAll(PIECE)) {
    pattern += literally(text.slice(from, match.index)) + likeOf(match[0])
    from = match.index + match[0].length
  }
  return pattern + literally(text.slice(from))
}

function likeOf(piece: string): string {
  if (piece.endsWith('…')) return String.raw`[\s\S]*?`
  return VARYING.find((sort) => new RegExp(`^(?:${sort})$`).test(piece)) ?? literally(piece)
}

/** The path of the first difference. An object with the member "…" may have more members, and a list with "…" more items. */
function findDifference(shown: unknown, got: unknown, path: string): string | null {
  if (typeof shown === 'string' && typeof got === 'string') return differenceOfText(shown, got) === null ? null : path
  if (shown === '…') return null
  if (Array.isArray(shown) && Array.isArray(got)) {
    const wanted = shown.at(-1) === '…' ? shown.slice(0, -1) : shown
    if (wanted === shown && shown.length !== got.length) return `${path}.length`
    return first(wanted.entries(), ([n, value]) => findDifference(value, got[n], `${path}[${n}]`))
  }
  if (isObject(shown) && isObject(got)) {
    const { '…': others, ...members } = shown
    const unseen = others === undefined ? Object.keys(got).find((name) => !Object.hasOwn(members, name)) : undefined
    if (unseen !== undefined) return `${path}.${unseen} is not shown`
    return first(Object.entries(members), ([name, value]) => findDifference(value, got[name], `${path}.${name}`))
  }
  return Object.is(shown, got) ? null : path || 'not JSON'
}

function first<T>(items: Iterable<T>, look: (item: T) => string | null): string | null {
  for (const item of items) {
    const found = look(item)
    if (found !== null) return found
  }
  return null
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function literally(text: string): string {
  return text.replaceAll(/[\\^$.*+?()[\]{}|/]/g, '\\$&')
}
