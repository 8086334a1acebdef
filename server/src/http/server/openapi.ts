import swagger from '@fastify/swagger'
import { ERRORS, type ErrorCode } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { errorBody } from '../../contract/common.ts'
import { KEY_MAX_LENGTH } from '../../core/keys/key.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route reads the header Idempotency-Key. */
    takesKey?: true
  }
}

interface DescriptionOptions {
  version: string
  publicUrl: string | null
  cookieName: string
}

/** Describes every route that is registered after this call. */
export async function installDescription(app: FastifyInstance, options: DescriptionOptions): Promise<void> {
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
    transform: (route) => {
      const { schema, url } = jsonSchemaTransform(route)
      const { ability, takesKey } = route.route.config ?? {}
      // In open mode callers need no token; workers always do, and have no sessions.
      const security =
        ability === 'public' ? [] : ability === 'worker' ? ANY_SCHEME : [...ANY_SCHEME, { session: [] }, {}]
      const response = route.route.method === 'GET' ? schema.response : withBodyRefusals(schema.response)
      return { url, schema: { ...schema, response, security, ...(takesKey ? { headers: KEY_HEADER } : {}) } }
    },
    transformObject: (document) => withoutUnused(jsonSchemaTransformObject(document)),
  })
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

/** The errors of any route with a caller. */
const EVERYWHERE: readonly ErrorCode[] = [
  'INVALID_PAYLOAD',
  'UNAUTHENTICATED',
  'FORBIDDEN',
  'OPEN_MODE_REFUSED',
  'CSRF_REFUSED',
  'RATE_LIMITED',
  'HEADERS_TOO_LARGE',
  'INTERNAL',
  'STORE_FULL',
  'UNAVAILABLE',
]

/** The errors of routes that read a body. */
export const WITH_BODY: readonly ErrorCode[] = ['PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE']

/** Any request but a GET may have a body, even if the route needs none. */
function withBodyRefusals(response: unknown): unknown {
  const described = response as Record<string, object> | undefined
  const like = described?.[400]
  if (like === undefined) return response
  const refusals = WITH_BODY.map((code) => [ERRORS[code].status, { ...like, description: sentences([code]) }])
  return { ...Object.fromEntries(refusals), ...described }
}

/** The answers of a route: its successes, and each error that it has a code for. */
export function answers(good: Record<number, Answer>, ...codes: ErrorCode[]): Record<number, object> {
  return answersWith(errorBody, good, ...codes)
}

/** The same for routes with another form of errors. */
export function answersWith(
  form: z.ZodType,
  good: Record<number, Answer>,
  ...codes: ErrorCode[]
): Record<number, object> {
  const described: Record<number, object> = {}
  for (const [status, [description, schema]] of Object.entries(good)) {
    described[Number(status)] = schema === undefined ? z.undefined().meta({ description }) : json(description, schema)
  }
  const byStatus = new Map<number, ErrorCode[]>()
  for (const code of [...EVERYWHERE, ...codes]) {
    const { status } = ERRORS[code]
    byStatus.set(status, [...(byStatus.get(status) ?? []), code])
  }
  for (const [status, listed] of byStatus) described[status] = json(sentences(listed), form)
  return described
}

export function errorAnswer(...codes: ErrorCode[]): object {
  return json(sentences(codes), errorBody)
}

function sentences(codes: readonly ErrorCode[]): string {
  return codes.map((code) => `\`${code}\`: ${ERRORS[code].sentence}`).join('\n\n')
}

type Answer = readonly [description: string, schema?: z.ZodType]

const json = (description: string, schema: z.ZodType) => ({ description, content: { 'application/json': { schema } } })

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
