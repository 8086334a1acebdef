import { isUtf8 } from 'node:buffer'
import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import { parseStrictJson } from '../core/strict-json.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route reports what went wrong: its text is taken as it is, and the service mends what cannot be stored. */
    takesAnyText?: true
  }
}

/** A batch of 1,000 jobs with payloads of 16 KiB each; a single payload has a smaller limit of its own. */
export const BODY_BYTES_MAX = 16 * 1024 * 1024

/** What anybody may send: reading 16 MiB of small names takes seconds in which nobody else is served. */
export const PUBLIC_BODY_BYTES_MAX = 64 * 1024

/** Bodies are JSON, and strictly so: what would be stored as something else than was sent is refused. */
export function installBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  app.addHook('onRoute', (route) => {
    if (route.config?.ability === 'public') route.bodyLimit = PUBLIC_BODY_BYTES_MAX
  })
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer' },
    ({ headers, routeOptions }, body: Buffer, done) => {
      if (headers['content-encoding'] !== undefined) {
        return done(new IchidoError('UNSUPPORTED_MEDIA_TYPE', 'Send the body as it is, without Content-Encoding'))
      }
      try {
        done(null, body.length === 0 ? undefined : parseBody(body, routeOptions.config.takesAnyText))
      } catch (error) {
        done(error instanceof Error ? error : new Error(String(error)))
      }
    },
  )
  // An empty body is none, whatever it is called: `curl -d ''` says that it is a form.
  app.addContentTypeParser('*', ({ headers }, _payload, done) => {
    const isEmpty = (headers['content-length'] ?? '0') === '0' && headers['transfer-encoding'] === undefined
    done(isEmpty ? null : new IchidoError('UNSUPPORTED_MEDIA_TYPE'), undefined)
  })
}

export function parseBody(body: Buffer, takesAnyText = false): unknown {
  if (!takesAnyText && !isUtf8(body)) throw new IchidoError('INVALID_PAYLOAD', 'The body is not valid UTF-8')
  const parsed = parseStrictJson(body.toString('utf8'), takesAnyText ? 'kept' : 'refused')
  if (!parsed.ok) throw new IchidoError('INVALID_PAYLOAD', parsed.problem.message, { field: parsed.problem.field })
  if (parsed.value === null) throw new IchidoError('INVALID_PAYLOAD', 'The body must be a JSON object')
  return parsed.value
}
