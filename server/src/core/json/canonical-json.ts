/**
 * RFC 8785: one text for one JSON value, whatever the order of its members or the spelling of its numbers. JavaScript writes
 * strings and numbers as the RFC asks, and sorts names by UTF-16 units as it does.
 */
export function canonicalJson(value: unknown): string {
  if (typeof value === 'object' && value !== null) {
    if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`
    if ('toJSON' in value && typeof value.toJSON === 'function') return canonicalJson(value.toJSON())
    return canonicalObject(value as Record<string, unknown>)
  }
  const text = JSON.stringify(value)
  const lossy = typeof value === 'number' ? !Number.isFinite(value) : typeof value === 'string' && !value.isWellFormed()
  if (text === undefined || lossy) throw new TypeError(`${String(value)} is not a JSON value`)
  return text
}

function canonicalObject(object: Record<string, unknown>): string {
  let text = ''
  for (const name of Object.keys(object).sort()) {
    const value = object[name]
    if (value !== undefined) text += `${text === '' ? '' : ','}${canonicalJson(name)}:${canonicalJson(value)}`
  }
  return `{${text}}`
}
