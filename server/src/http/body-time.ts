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

/** A body that drips in byte by byte does not hold its connection for ever. */
export function limitBodyTime(app: FastifyInstance, world: Pick<World, 'after' | 'uuid'>): void {
  const refuse = createClientErrorHandler(world)
  app.addHook('preParsing', (request, _reply, payload, done) => {
    const { raw, routeOptions } = request
    // Nearly every body has arrived by now.
    if (!raw.complete && routeOptions.config.streams !== true) {
      const callOff = world.after(BODY_WITHIN_MS, () => refuse({ code: 'ERR_HTTP_REQUEST_TIMEOUT' }, raw.socket))
      raw.once('end', callOff).once('close', callOff)
    }
    done(null, payload)
  })
}
