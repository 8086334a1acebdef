import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { DescribedRoute } from '../server/openapi.ts'

export const DOCS_PATH = '/docs'

export interface DocsOptions {
  version: string
  publicUrl: string | null
  basePath: string
  cookieName: string
}

/** The description of the API and its page. Few servers are ever asked for them, so they are made at the first request. */
export interface Docs {
  /** The OpenAPI document. */
  document(): Promise<object>
  /** Answers a request for the page or one of its files. */
  answer(request: FastifyRequest, reply: FastifyReply): Promise<unknown>
}

/** These belong to the connection, and the server that sends the answer sets them. */
const HOP_HEADERS = ['connection', 'date', 'keep-alive', 'transfer-encoding']

/** @param routes read at the first request, when all routes are registered */
export function lazyDocs(routes: readonly DescribedRoute[], options: DocsOptions): Docs {
  let made: Promise<FastifyInstance> | null = null
  const docs = () => {
    made ??= import('./create-docs.ts')
      .then(({ createDocs }) => createDocs(routes, options))
      .catch((error: unknown) => {
        made = null
        throw error
      })
    return made
  }
  return {
    document: async () => (await docs()).swagger(),
    async answer({ url, headers }, reply) {
      const { statusCode, headers: found, rawPayload } = await (await docs()).inject({ url, headers })
      if (statusCode >= 400) return reply.callNotFound()
      for (const name of HOP_HEADERS) delete found[name]
      return reply.code(statusCode).headers(found).send(rawPayload)
    },
  }
}
