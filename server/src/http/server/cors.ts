import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { AllowedOrigins } from '../../core/node/allowed-origins.ts'

const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE'
/** What scripts of another origin may read of an answer, beside its body and type. */
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
/** For so long a browser need not ask again. */
const PREFLIGHT_SECONDS = '600'

/**
 * Lets pages of other origins call the server. It stands in front of everything that answers, so that errors, streams and
 * the fast way of submitting carry the same headers. In open mode it lets nobody in: there the server's only protection
 * from the pages of a browser on the same machine is that it serves its own origin alone.
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

/** Before anybody is asked for a token: a browser sends none with this question. */
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
