import type { IncomingHttpHeaders } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyRequest } from 'fastify'
import { sameHash } from '../../services/access/access.ts'
import { csrfTokenOf } from '../../services/access/sessions.ts'

/** Browsers send it with every request of a page. Scripts cannot set it. */
const FETCH_SITE = 'sec-fetch-site'
const CSRF_HEADER = 'ichido-csrf'
/** These methods change nothing. */
const SAFE_METHODS = ['GET', 'HEAD']

/** The header that shows that a page of another origin sent the request, or null. */
export function foreignHeader(
  headers: IncomingHttpHeaders,
  ownOrigins: readonly string[],
): 'origin' | 'sec-fetch-site' | null {
  const { origin, [FETCH_SITE]: site } = headers
  const lower = origin?.toLowerCase()
  if (lower !== undefined && !ownOrigins.some((own) => own.toLowerCase() === lower)) return 'origin'
  return site === undefined || site === 'same-origin' || site === 'none' ? null : FETCH_SITE
}

type Sent = Pick<FastifyRequest, 'method' | 'headers' | 'protocol' | 'host'>

/**
 * Checks requests that browsers send with a cookie by themselves. SameSite=Strict is not enough: it allows requests
 * from pages on other ports and subdomains of the host.
 */
export interface OwnPages {
  /** Refuses a request from a page of another origin, also of one in ALLOWED_ORIGINS. */
  require(request: Sent): void
  /** The same for a request with a session. To change anything, it also needs the session's CSRF token. */
  requireFor(request: Sent, secret: string): void
}

export function createOwnPages(publicUrl: string | null): OwnPages {
  const publicOrigins = publicUrl === null ? [] : [new URL(publicUrl).origin]

  function require({ headers, protocol, host }: Sent): void {
    const foreign = foreignHeader(headers, [...publicOrigins, `${protocol}://${host}`])
    if (foreign === null) return
    const value = JSON.stringify(headers[foreign])
    const advice =
      foreign === 'origin'
        ? `it must be the server's own, ${publicOrigins[0] ?? `${protocol}://${host}`}. If the server is behind a proxy, set PUBLIC_URL`
        : 'it must be same-origin or none'
    throw new IchidoError(
      'CSRF_REFUSED',
      `A session only works on the server's own pages. ${foreign} is ${value}; ${advice}`,
    )
  }

  return {
    require,
    requireFor(request, secret) {
      require(request)
      if (SAFE_METHODS.includes(request.method)) return
      const given = request.headers[CSRF_HEADER]
      const problem =
        given === undefined ? 'is missing' : sameHash(String(given), csrfTokenOf(secret)) ? null : 'is wrong'
      if (problem === null) return
      const message = `The header ${CSRF_HEADER} ${problem}; send the csrf_token of GET /v1/session with each request that is not a GET`
      throw new IchidoError('CSRF_REFUSED', message)
    },
  }
}
