import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { AllowedOrigins } from '../../core/node/addresses.ts'

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE'
/** The headers that scripts of another origin may read. */
const EXPOSED = [
  'Accept-Ranges',
  'Allow',
  'Content-Disposition',
  'Content-Range',
  'ETag',
  'Idempotent-Replayed',
  'Retry-After',
  'Should-Retry',
  'Upload-Complete',
  'Upload-Offset',
  'WWW-Authenticate',
  'X-Request-Id',
].join(', ')
const CREDENTIALS = ['authorization', 'x-api-key']
/** Browsers cache the answer to a preflight for this long. */
const PREFLIGHT_SECONDS = '600'

/**
 * Lets pages of other origins call the server. It runs before every other handler, so that errors, streams and the fast
 * route have the same headers. In open mode it allows no other origin: there the same-origin rule is the only
 * protection from pages in a browser on the same machine.
 */
export function cors(
  origins: AllowedOrigins,
  isOpen: () => Promise<boolean>,
  next: RequestListener,
): (request: IncomingMessage, response: ServerResponse) => void {
  return (request, response) => {
    response.setHeader('vary', 'Origin')
    const { origin } = request.headers
    const exact = origin !== undefined && origins.exact.has(origin)
    if (origin === undefined || !(exact || origins.any)) return next(request, response)
    void isOpen().then((open) => {
      if (open) return next(request, response)
      response.setHeader('access-control-allow-origin', exact ? origin : '*')
      if (exact) response.setHeader('access-control-allow-credentials', 'true')
      const asked = request.method === 'OPTIONS' ? request.headers['access-control-request-method'] : undefined
      if (asked !== undefined) return answerPreflight(request, response, exact)
      response.setHeader('access-control-expose-headers', EXPOSED)
      next(request, response)
    })
  }
}

/** A preflight has no token. */
function answerPreflight({ headers }: IncomingMessage, response: ServerResponse, exact: boolean): void {
  const wanted = String(headers['access-control-request-headers'] ?? '')
    .split(',')
    .map((name) => name.trim().toLowerCase())
  const allowed = wanted.filter((name) => /^[\w-]+$/.test(name) && (exact || !CREDENTIALS.includes(name)))
  response
    .writeHead(204, {
      'access-control-allow-methods': METHODS,
      ...(allowed.length === 0 ? {} : { 'access-control-allow-headers': allowed.join(', ') }),
      'access-control-max-age': PREFLIGHT_SECONDS,
      vary: 'Origin, Access-Control-Request-Headers',
    })
    .end()
}
