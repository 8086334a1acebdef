import helmet from '@fastify/helmet'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'
import { pageRoutes } from '../page/page-routes.ts'

/** What is meant for browsers: the page and the API's documentation, which need no credentials by themselves. */
export async function htmlRoutes(app: FastifyInstance, { secure }: { secure: boolean }): Promise<void> {
  await app.register(helmet, {
    contentSecurityPolicy: {
      useDefaults: false,
      directives: {
        defaultSrc: ["'none'"],
        scriptSrc: ["'self'"],
        // Swagger UI writes style attributes.
        styleSrc: ["'self'", "'unsafe-inline'"],
        imgSrc: ["'self'", 'data:'],
        fontSrc: ["'self'"],
        connectSrc: ["'self'"],
        baseUri: ["'none'"],
        formAction: ["'none'"],
        frameAncestors: ["'none'"],
      },
    },
    // Over plain HTTP it would be ignored; on a name that is shared with other services it would break them.
    strictTransportSecurity: secure,
  })
  await app.register(async (docs) => {
    docs.addHook('onRoute', (route) => {
      route.config = { ...route.config, ability: 'public' }
    })
    await docs.register(swaggerUi, {
      routePrefix: '/docs',
      indexPrefix: app.prefix,
      // Without the bar at the top: there is one API to explore, and the logo in it is another project's.
      uiConfig: { validatorUrl: null, layout: 'BaseLayout' },
      theme: { title: 'Ichido' },
    })
  })
  await app.register(pageRoutes)
}
