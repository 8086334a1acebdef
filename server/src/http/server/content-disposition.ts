/**
 * A file to keep, whatever it holds: no browser is to show it as a page of this server. The name is there twice, because
 * `curl -OJ` and other simple clients know the plain form only (RFC 6266).
 */
export function attachment(name: string): string {
  const plain = name.replace(/[^\x20-\x7e]|["\\%]/gu, '_')
  const encoded = encodeURIComponent(name).replace(
    /['()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${plain}"; filename*=UTF-8''${encoded}`
}
