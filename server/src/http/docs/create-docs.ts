import swagger, { type SwaggerTransform } from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import { ERRORS } from '@ichido/sdk/protocol'
import Fastify, { type FastifyInstance } from 'fastify'
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod'
import { KEY_MAX_LENGTH } from '../../core/keys/key.ts'
import { installValidation, schemaController } from '../server/errors.ts'
import { type DescribedRoute, sentences, WITH_BODY } from '../server/openapi.ts'
import { DOCS_PATH, type DocsOptions } from './options.ts'

/** The description of the routes, and the page that shows it. */
export async function createDocs(routes: readonly DescribedRoute[], options: DocsOptions): Promise<FastifyInstance> {
  const app = Fastify({ schemaController })
  installValidation(app)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Ichido',
        description:
          'Ichido is a job control plane. It accepts a job once, gives it to one worker at a time, and accepts one outcome.',
        version: options.version,
      },
      ...(options.publicUrl === null ? {} : { servers: [{ url: new URL(options.publicUrl).origin }] }),
      components: { securitySchemes: { ...SCHEMES, session: sessionScheme(options.cookieName) } },
    },
    stripBasePath: false,
    transform: describe,
    transformObject: (document) => withoutUnused(jsonSchemaTransformObject(document)),
  })
  await app.register(async (scope) => {
    for (const route of routes) scope.route({ ...route, handler: () => null })
  })
  await app.register(swaggerUi, {
    routePrefix: `${options.basePath}${DOCS_PATH}`,
    indexPrefix: options.basePath,
    // No bar at the top: there is one API to explore, and the bar shows the logo of another project.
    // The tags are closed: beyond 150 rows, Swagger UI only draws those in view, and the browser's search misses the others.
    uiConfig: { validatorUrl: null, layout: 'BaseLayout', docExpansion: 'none' },
    theme: { title: 'Ichido' },
  })
  await app.ready()
  return app
}

const describe: SwaggerTransform = (described) => {
  const { schema, url } = jsonSchemaTransform(described)
  const { config, method } = described.route
  const { ability, takesKey } = config ?? {}
  // In open mode callers need no token; workers always do, and have no sessions.
  const security = ability === 'public' ? [] : ability === 'worker' ? ANY_SCHEME : [...ANY_SCHEME, { session: [] }, {}]
  const response = method === 'GET' ? schema.response : withBodyRefusals(schema.response)
  return { url, schema: { ...schema, response, security, ...(takesKey ? { headers: KEY_HEADER } : {}) } }
}

/** Each scheme carries the same token; `credentialsOf` reads it. */
const SCHEMES = {
  token: { type: 'http', scheme: 'bearer' },
  apiKey: { type: 'apiKey', in: 'header', name: 'X-API-Key' },
  basic: { type: 'http', scheme: 'basic', description: 'The token is the password, with any user name' },
} as const
const sessionScheme = (name: string) =>
  ({
    type: 'apiKey',
    in: 'cookie',
    name,
    description: 'The cookie of `POST /v1/session`. A request that is not a GET also needs the header `ichido-csrf`.',
  }) as const
const ANY_SCHEME = Object.keys(SCHEMES).map((name) => ({ [name]: [] }))

const KEY_HEADER = {
  type: 'object',
  properties: {
    'Idempotency-Key': {
      type: 'string',
      description: `1 to ${KEY_MAX_LENGTH} visible ASCII characters, bare or as a quoted string (RFC 8941)`,
    },
  },
}

/** Any request but a GET may have a body, even if the route needs none. */
function withBodyRefusals(response: unknown): unknown {
  const described = response as Record<string, object> | undefined
  const like = described?.[400]
  if (like === undefined) return response
  const refusals = WITH_BODY.map((code) => [ERRORS[code].status, { ...like, description: sentences([code]) }])
  return { ...Object.fromEntries(refusals), ...described }
}

interface Described {
  paths?: unknown
  components?: { schemas?: Record<string, unknown> }
}

/** Each schema has a form for requests and one for answers. Forms without a reference are removed. */
function withoutUnused<Document extends Described>(document: Document): Document {
  const schemas = document.components?.schemas ?? {}
  const used = new Set<string>()
  const visit = (part: unknown) => {
    for (const [, name = ''] of JSON.stringify(part).matchAll(/"#\/components\/schemas\/([^"]+)"/g)) {
      if (used.has(name) || !(name in schemas)) continue
      used.add(name)
      visit(schemas[name])
    }
  }
  visit(document.paths ?? {})
  for (const name of Object.keys(schemas)) if (!used.has(name)) delete schemas[name]
  return document
}
