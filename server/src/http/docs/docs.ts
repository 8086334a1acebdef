import type { IncomingHttpHeaders } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { DescribedRoute } from '../server/openapi.ts'
import { DOCS_PATH, type DocsOptions } from './options.ts'

/** The description of the API and its page. Few servers are ever asked for them, so they are made at the first request. */
export interface Docs {
  /** The OpenAPI document. */
  document(): Promise<object>
  /** Answers a request for the page or one of its files. */
  answer(request: FastifyRequest, reply: FastifyReply): Promise<unknown>
}

/** The server that sends the answer sets these, and it sends no parts of a file. */
const HEADERS_OF_SENDER = ['accept-ranges', 'connection', 'content-length', 'date', 'keep-alive', 'transfer-encoding']

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
      const { statusCode, headers: found, rawPayload } = await (await docs()).inject({ url, headers: cached(headers) })
      if (statusCode >= 500) throw new Error(`The docs answered ${statusCode}: ${rawPayload.toString()}`)
      if (statusCode >= 400) {
        // The name of a file may have anything in it. Any other path may be a wrong ICHIDO_URL, so its answer names the path.
        if (url.includes(`${DOCS_PATH}/static/`)) throw new IchidoError('NOT_FOUND')
        return reply.callNotFound()
      }
      for (const name of HEADERS_OF_SENDER) delete found[name]
      return reply
        .code(statusCode)
        .headers(found)
        .send(rawPayload.length === 0 ? undefined : rawPayload)
    },
  }
}

/** What a browser knows of a file in its cache. Other headers do not change the answer. */
function cached(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  const { 'if-none-match': etag, 'if-modified-since': since } = headers
  return {
    ...(etag === undefined ? {} : { 'if-none-match': etag }),
    ...(since === undefined ? {} : { 'if-modified-since': since }),
  }
}
