import type { SessionShape } from '@ichido/sdk/protocol'
import type { FastifyRequest } from 'fastify'
import { createSessionRequest, session } from '../../contract/access.ts'
import { abilitiesOf, type Caller } from '../../core/limits/roles.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { csrfTokenOf, type Session } from '../../services/access/sessions.ts'
import { STREAM_TOKEN_PREFIX } from '../../services/access/stream-tokens.ts'
import { iso } from '../../services/answers.ts'
import { WORKER_TOKEN_PREFIX } from '../../services/workers/workers.ts'
import type { ApiInstance, RouteContext } from '../routes/context.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { callerOf, sessionSecretOf } from './auth.ts'
import type { OwnPages } from './own-page.ts'
import type { RequestRates } from './rates.ts'
import type { SessionCookie } from './session-cookie.ts'

const tags = ['sessions']
const PATH = '/v1/session'

interface SessionOptions {
  cookie: SessionCookie
  ownPages: OwnPages
  rates: RequestRates
}

/** Sign-in and sign-out of browsers. */
export function sessionRoutes(
  app: ApiInstance,
  { services: { access, sessions }, world }: RouteContext,
  { cookie, ownPages, rates }: SessionOptions,
): void {
  app.post(
    PATH,
    {
      config: { ability: 'public' },
      schema: {
        tags,
        summary: 'Sign in with an API token',
        description:
          'The answer sets a cookie, which then stands for the token on every route for callers. A request with the ' +
          'cookie that is not a GET needs the header `ichido-csrf` with the `csrf_token` of the answer. The session ends ' +
          'after 12 hours, with its token, or when the caller signs out.',
        body: createSessionRequest,
        response: answers({ 200: ['The session', session] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { token } = request.body
      // Another site must not sign a browser in as somebody else.
      ownPages.require(request)
      const caller = await access.authenticate(token)
      if (caller === null) return app.refuseCredentials(request, reply, problemOf(token))
      rates.admit(caller)
      const made = await sessions.create(token)
      // It was revoked meanwhile.
      if (made === null) return app.refuseCredentials(request, reply)
      const maxAgeSeconds = Math.ceil((made.expiresAtMs - world.now()) / 1000)
      return reply.header('set-cookie', cookie.set(made.secret, maxAgeSeconds)).send(render(made.caller, made))
    },
  )

  app.get(
    PATH,
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show who the caller is, and what the caller may do',
        description: 'It works with every kind of credentials, and in open mode without any.',
        response: answers({ 200: ['The caller', session] }),
      },
    },
    async (request) => render(callerOf(request), request.session),
  )

  app.delete(
    PATH,
    {
      config: { ability: 'public' },
      schema: {
        tags,
        summary: 'Sign out',
        description: 'Ends the session of the cookie at every node, and clears the cookie. Idempotent.',
        response: answers({ 204: ['There is no session any more'] }),
      },
    },
    async (request, reply) => {
      const secret = secretOf(request)
      if (secret !== undefined) await sessions.end(secret)
      return reply.code(204).header('set-cookie', cookie.cleared).send()
    },
  )

  function secretOf(request: FastifyRequest): string | undefined {
    const secret = sessionSecretOf(request.headers, cookie.name)
    if (secret !== undefined) ownPages.requireFor(request, secret)
    return secret
  }
}

/** Undefined: the usual sentence. */
function problemOf(token: string): string | undefined {
  if (token.startsWith(WORKER_TOKEN_PREFIX))
    return 'A worker token cannot sign in, because it belongs to no user; send an API token'
  if (token.startsWith(STREAM_TOKEN_PREFIX))
    return 'A stream token cannot sign in, because it only opens the events of one job; send an API token'
  return undefined
}

function render(caller: Caller, session: (Session & { secret: string }) | null): SessionShape {
  return {
    user_id: caller.userId,
    role: caller.role,
    abilities: abilitiesOf(caller),
    expires_at: session === null ? null : iso(session.expiresAtMs),
    csrf_token: session === null ? null : csrfTokenOf(session.secret),
    open: caller === LOCAL_ADMIN,
  }
}
