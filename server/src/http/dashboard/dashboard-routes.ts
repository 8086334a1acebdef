import helmet from '@fastify/helmet'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Docs } from '../docs/docs.ts'
import { DOCS_PATH } from '../docs/options.ts'
import { type DashboardFile, readDashboard } from './dashboard-files.ts'

/** Each page has an address, so that a reload shows the same page. `dashboard/src/routes.tsx` draws them. */
export const PAGES = [
  '/',
  '/jobs',
  '/jobs/:id',
  '/queues',
  '/workers',
  '/schedules',
  '/schedules/:name',
  '/dead-letters',
  '/users',
  '/keys',
  '/tokens',
  '/audit',
  '/alerts',
  '/webhooks',
  '/webhooks/:id',
  '/settings',
  '/system',
]

/** No inline code and nothing from other sites, so that a script in a job's payload can never run. */
const POLICY = [
  "default-src 'none'",
  ...['script-src', 'style-src', 'connect-src'].map((what) => `${what} 'self'`),
  // Images of jobs are shown from the memory of the page.
  "img-src 'self' blob:",
  // The server writes the base of the links into the page.
  "base-uri 'self'",
  ...['form-action', 'frame-ancestors'].map((what) => `${what} 'none'`),
].join('; ')

/** The dashboard. It is public, because its data come from the API, which needs the caller's credentials. */
async function dashboardRoutes(app: FastifyInstance, { basePath }: { basePath: string }): Promise<void> {
  let read: Promise<Map<string, DashboardFile>> | null = null
  const files = () => {
    read ??= readDashboard(basePath).catch((error: unknown) => {
      read = null
      throw error
    })
    return read
  }
  const route = { config: { ability: 'public' as const }, schema: { hide: true } }
  for (const path of PAGES) {
    app.get(path, route, async (request, reply) => {
      // A new version of the server has new files, so the browser asks each time.
      return sendFile(request, reply.header('cache-control', 'no-cache'), (await files()).get('index.html'))
    })
  }
  app.get<{ Params: { file: string } }>('/assets/:file', route, async (request, reply) => {
    const file = (await files()).get(`assets/${request.params.file}`)
    // The name contains the hash of the content.
    return sendFile(request, reply.header('cache-control', 'public, max-age=31536000, immutable'), file)
  })
}

function sendFile(request: FastifyRequest, reply: FastifyReply, file: DashboardFile | undefined): unknown {
  if (file === undefined) {
    reply.header('cache-control', 'no-store')
    return reply.callNotFound()
  }
  reply.header('content-security-policy', POLICY).header('etag', file.etag).header('vary', 'accept-encoding')
  if (request.headers['if-none-match'] === file.etag) return reply.code(304).send()
  reply.type(file.type)
  if (!/\bgzip\b/.test(request.headers['accept-encoding'] ?? '')) return reply.send(file.content)
  return reply.header('content-encoding', 'gzip').send(file.gzipped)
}

/** The dashboard and the documentation of the API, which need no credentials. */
export async function htmlRoutes(
  app: FastifyInstance,
  { secure, basePath, docs }: { secure: boolean; basePath: string; docs: Docs },
): Promise<void> {
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
  const route = { config: { ability: 'public' as const }, schema: { hide: true } }
  for (const path of ['', '/*']) app.get(`${DOCS_PATH}${path}`, route, (request, reply) => docs.answer(request, reply))
  await app.register(dashboardRoutes, { basePath })
}
