import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'

/** The paths of all routes that are registered after this call. */
export function collectPaths(app: FastifyInstance): ReadonlySet<string> {
  const paths = new Set<string>()
  app.addHook('onRoute', ({ url }) => void paths.add(url))
  return paths
}

/** Without it a path that exists would be answered 404 under another method. */
export function refuseOtherMethods(app: FastifyInstance, paths: Iterable<string>): void {
  for (const url of paths) {
    const taken = app.supportedMethods.filter((method) => app.hasRoute({ method, url }))
    const allow = taken.sort().join(', ')
    app.route({
      url,
      method: app.supportedMethods.filter((method) => !taken.includes(method)),
      config: { ability: 'public' },
      schema: { hide: true },
      onRequest: async (request, reply) => {
        reply.header('allow', allow)
        throw new IchidoError('METHOD_NOT_ALLOWED', `${request.method} is not allowed for this path; it takes ${allow}`)
      },
      handler: () => undefined,
    })
  }
}
