import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import helmet from '@fastify/helmet'
import swaggerUi from '@fastify/swagger-ui'
import type { FastifyInstance } from 'fastify'

const FILES = [
  { path: '/', file: 'index.html', type: 'text/html; charset=utf-8' },
  { path: '/page.css', file: 'page.css', type: 'text/css; charset=utf-8' },
  { path: '/page.js', file: 'page.js', type: 'text/javascript; charset=utf-8' },
  { path: '/page-dom.js', file: 'page-dom.js', type: 'text/javascript; charset=utf-8' },
  { path: '/page-detail.js', file: 'page-detail.js', type: 'text/javascript; charset=utf-8' },
  { path: '/page-icon.svg', file: 'page-icon.svg', type: 'image/svg+xml' },
] as const

/** No inline code and nothing from other sites, so that a script in a job's payload can never run. */
const POLICY = [
  "default-src 'none'",
  ...['script-src', 'style-src', 'img-src', 'connect-src'].map((what) => `${what} 'self'`),
  ...['base-uri', 'form-action', 'frame-ancestors'].map((what) => `${what} 'none'`),
].join('; ')

/** The dashboard. It is public, because its data come from the API, which needs the caller's token. */
async function pageRoutes(app: FastifyInstance): Promise<void> {
  for (const { path, file, type } of FILES) {
    const content = readFileSync(new URL(file, import.meta.url))
    const etag = `"${createHash('sha256').update(content).digest('base64url')}"`
    app.get(path, { config: { ability: 'public' }, schema: { hide: true } }, (request, reply) => {
      // The links of the page are relative, so that it works under any base path. So its path must end in a slash.
      const [asked = ''] = request.url.split('?', 1)
      if (!asked.endsWith(path)) return reply.redirect(`${asked}/`)
      reply.header('content-security-policy', POLICY).header('cache-control', 'no-cache').header('etag', etag)
      if (request.headers['if-none-match'] === etag) return reply.code(304).send()
      return reply.type(type).send(content)
    })
  }
}

/** The dashboard and the documentation of the API, which need no credentials. */
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
    // Browsers ignore it over plain HTTP. On a host name that other services share, it would break them.
    strictTransportSecurity: secure,
  })
  await app.register(async (docs) => {
    docs.addHook('onRoute', (route) => {
      route.config = { ...route.config, ability: 'public' }
    })
    await docs.register(swaggerUi, {
      routePrefix: '/docs',
      indexPrefix: app.prefix,
      // No bar at the top: there is one API to explore, and the bar shows the logo of another project.
      uiConfig: { validatorUrl: null, layout: 'BaseLayout' },
      theme: { title: 'Ichido' },
    })
  })
  await app.register(pageRoutes)
}
