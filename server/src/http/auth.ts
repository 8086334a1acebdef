import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Ability, type Caller, can } from '../core/roles.ts'
import { LOCAL_ADMIN } from '../services/access.ts'
import type { Services } from '../services/index.ts'
import { FailureLimit } from './failure-limit.ts'
import { openModeRefusal } from './open-mode.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** What the caller of a route must be able to do; every route says it. */
    ability?: Ability | 'public'
  }
  interface FastifyRequest {
    caller: Caller | null
  }
}

/** Who sent the request; every route whose ability is not `public` has a caller. */
export function callerOf(request: FastifyRequest): Caller {
  if (request.caller === null) throw new Error(`${request.method} ${request.url} is public and has no caller`)
  return request.caller
}

export interface AuthOptions {
  services: Services
  openMode: boolean
}

/** Puts a caller on each request, before its body is read. */
export function installAuth(app: FastifyInstance, { services, openMode }: AuthOptions): void {
  const { access, deps } = services
  const failures = new FailureLimit(deps.world)

  async function authenticate(request: FastifyRequest, reply: FastifyReply): Promise<Caller> {
    if (openMode && !(await access.isAuthRequired())) {
      const problem = openModeRefusal(request)
      if (problem !== null) throw new IchidoError('OPEN_MODE_REFUSED', problem)
      return LOCAL_ADMIN
    }
    const { authorization } = request.headers
    if (authorization === undefined) {
      reply.header('www-authenticate', 'Bearer realm="ichido"')
      throw new IchidoError('UNAUTHENTICATED', 'Send a token: Authorization: Bearer <token>')
    }
    const token = /^Bearer +([\x21-\x7e]+) *$/i.exec(authorization)?.[1]
    // A right token is never held up, whoever fails from the same address: 256 random bits are not guessed, and one
    // broken client behind a shared proxy must not lock its neighbours out. The limit spares the log and the client.
    const caller = token === undefined ? null : await access.authenticate(token)
    if (caller !== null) return caller
    const waitSeconds = failures.record(request.ip)
    if (waitSeconds !== null) {
      reply.header('retry-after', waitSeconds)
      throw new IchidoError('RATE_LIMITED', `Too many failed attempts to authenticate; wait ${waitSeconds} s`)
    }
    reply.header('www-authenticate', 'Bearer realm="ichido", error="invalid_token"')
    throw token === undefined
      ? new IchidoError('UNAUTHENTICATED', 'Authorization must be: Bearer <token>')
      : new IchidoError('UNAUTHENTICATED')
  }

  app.decorateRequest('caller', null)
  app.addHook('onRequest', async (request, reply) => {
    const { ability } = request.routeOptions.config
    if (request.is404 || ability === 'public') return
    if (ability === undefined) throw new Error(`The route ${request.routeOptions.url} does not say who may call it`)
    const caller = await authenticate(request, reply)
    if (!can(caller, ability)) {
      throw new IchidoError('FORBIDDEN', `The role ${caller.role} may not do this`)
    }
    request.caller = caller
  })
}
