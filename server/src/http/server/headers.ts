import type { IncomingMessage } from 'node:http'
import type { World } from '@ichido/sdk/world'
import type { FastifyReply } from 'fastify'

const SANE = /^[\x21-\x7e]{1,128}$/

/** The offered media type that the client prefers (RFC 9110, 12.5.1), or the first one. */
export function preferredType<T extends string>(accept: string | undefined, offered: readonly [T, ...T[]]): T {
  const asked = (accept ?? '')
    .split(',')
    .map((part) => {
      const [type = '', ...parameters] = part
        .trim()
        .toLowerCase()
        .split(/\s*;\s*/)
      const weight = Number(parameters.find((parameter) => parameter.startsWith('q='))?.slice(2) ?? 1)
      return { type, weight }
    })
    .filter(({ weight }) => weight > 0)
    .sort((a, b) => b.weight - a.weight)
  for (const { type } of asked) {
    const found = offered.find((one) => matches(one, type))
    if (found !== undefined) return found
  }
  return offered[0]
}

function matches(offered: string, asked: string): boolean {
  return asked === '*/*' || offered === asked || (asked.endsWith('/*') && offered.startsWith(asked.slice(0, -1)))
}

/** Tells caches that the answer depends on Accept. It keeps an existing Vary. */
export function varyByAccept(reply: FastifyReply): void {
  const before = reply.raw.getHeader('vary')
  reply.header('vary', before === undefined ? 'accept' : `${String(before)}, accept`)
}

/**
 * A header that makes browsers save the file, so that its content never runs as a page of this server. The name is
 * there twice, because `curl -OJ` and other simple clients read only the plain form (RFC 6266).
 */
export function attachment(name: string): string {
  const plain = name.replace(/[^\x20-\x7e]|["\\%]/gu, '_')
  const encoded = encodeURIComponent(name).replace(
    /['()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${plain}"; filename*=UTF-8''${encoded}`
}

/**
 * The headers of every answer. Most answers depend on who asks, and caches do not know that of requests with a cookie or an
 * X-API-Key. A route whose answers may be kept says so.
 */
export function answerHeaders(requestId: string): Record<string, string> {
  return { 'x-request-id': requestId, 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' }
}

/** The caller's id if it is safe to log and echo, else a new one. */
export function requestId({ headers }: Pick<IncomingMessage, 'headers'>, world: Pick<World, 'uuid'>): string {
  const given = headers['x-request-id']
  return typeof given === 'string' && SANE.test(given) ? given : world.uuid()
}
