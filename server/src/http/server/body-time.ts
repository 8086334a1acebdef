import type { IncomingMessage } from 'node:http'
import type { World } from '@ichido/sdk/world'
import type { FastifyInstance } from 'fastify'
import { createClientErrorHandler } from './client-errors.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route takes its body as it comes, for as long as something comes. */
    streams?: true
  }
}

const BODY_WITHIN_MS = 120_000

/**
 * A body that drips in byte by byte does not hold its connection for ever, be it awaited or answered already. Node knows one
 * limit for all requests, and an upload may take hours.
 */
export function limitBodyTime(app: FastifyInstance, world: Pick<World, 'after' | 'uuid'>): void {
  const refuse = createClientErrorHandler(world)

  function limit(raw: IncomingMessage, whenLate: () => void): void {
    const callOff = world.after(BODY_WITHIN_MS, whenLate)
    raw.once('end', callOff).once('close', callOff)
  }

  // Nearly every body has arrived by the time it is looked for.
  app.addHook('preParsing', ({ raw, routeOptions }, _reply, payload, done) => {
    if (raw.complete === false && routeOptions.config.streams !== true) {
      limit(raw, () => refuse({ code: 'ERR_HTTP_REQUEST_TIMEOUT' }, raw.socket))
    }
    done(null, payload)
  })
  app.addHook('onResponse', ({ raw }, _reply, done) => {
    if (raw.complete === false) limit(raw, () => void raw.socket.destroy())
    done()
  })
}
