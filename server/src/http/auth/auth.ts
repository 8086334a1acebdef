import type { IncomingHttpHeaders } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Ability, type Caller, can } from '../../core/limits/roles.ts'
import { isOutage } from '../../core/node/store-errors.ts'
import { type AccessService, LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Session } from '../../services/access/sessions.ts'
import { STREAM_TOKEN_PREFIX } from '../../services/access/stream-tokens.ts'
import type { Services } from '../../services/index.ts'
import { within } from '../../services/wait.ts'
import { WORKER_TOKEN_PREFIX, type WorkerIdentity, wasRevoked } from '../../services/workers/workers.ts'
import { STORE_TIMEOUT_MS, type StoreCheck } from '../metrics/store-check.ts'
import type { ClientAddresses } from './client-address.ts'
import { type DirectRequest, openModeRefusal } from './open-mode.ts'
import type { OwnPages } from './own-page.ts'
import { FailureLimit, type RequestRates } from './rates.ts'
import type { SessionCookie } from './session-cookie.ts'

/**
 * The server accepts Basic but never asks for it. A browser that is asked opens a password dialog over the dashboard,
 * and then sends the password with every request to this server, also with requests that a page of another site starts.
 */
const CHALLENGE = 'Bearer realm="ichido"'
const BAD_AUTHORIZATION = 'Authorization must be Bearer <token>, or Basic with the token as the password'
const TOKEN = /^[\x21-\x7e]+$/

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The ability that a caller of the route needs; every route names it. `worker`: only workers call it. */
    ability?: Ability | 'public' | 'worker'
    /** Workers may also call it. */
    workersToo?: boolean
    /** While the store does not answer, callers that it has accepted lately may call it. */
    evenWithoutStore?: boolean
    /** The route also accepts a stream token of the job in its path. */
    streamTokens?: boolean
  }
  interface FastifyRequest {
    caller: Caller | null
    worker: WorkerIdentity | null
    /** The session that the caller is known by; null: the caller sent a token, or nothing in open mode. */
    session: (Session & { secret: string }) | null
  }
  interface FastifyInstance {
    /** Throws the refusal of a request with wrong credentials. */
    refuseCredentials(request: FastifyRequest, reply: FastifyReply, message?: string): never
  }
}

/** Every route whose ability is neither `public` nor `worker` has a caller. */
export function callerOf(request: FastifyRequest): Caller {
  if (request.caller === null) throw new Error(`${request.method} ${request.url} has no caller`)
  return request.caller
}

/** On a route that callers and workers share, `request.worker` is null for callers. */
export function workerOf(request: FastifyRequest): WorkerIdentity {
  if (request.worker === null) throw new Error(`${request.method} ${request.url} was not sent by a worker`)
  return request.worker
}

interface AuthOptions {
  services: Services
  openMode: boolean
  checkStore: StoreCheck
  rates: RequestRates
  addresses: ClientAddresses
  cookie: SessionCookie
  ownPages: OwnPages
}

/** Sets the caller or the worker of each request, before its body is read. */
export function installAuth(app: FastifyInstance, options: AuthOptions): void {
  const { services, openMode, checkStore, rates, addresses, cookie, ownPages } = options
  const { access, sessions, workers, streamTokens, deps } = services
  const failures = new FailureLimit(deps.world)

  // A valid token is never delayed by failures from the same address: 256 random bits cannot be guessed, and one broken
  // client behind a shared proxy must not lock out its neighbours. The limit protects the log.
  function refuseCredentials(request: FastifyRequest, reply: FastifyReply, message?: string): never {
    const waitSeconds = failures.record(addresses.of(request))
    if (waitSeconds !== null) {
      reply.header('retry-after', waitSeconds)
      throw new IchidoError('RATE_LIMITED', `Too many failed attempts to authenticate; wait ${waitSeconds} s`)
    }
    reply.header('www-authenticate', `${CHALLENGE}, error="invalid_token"`)
    throw new IchidoError('UNAUTHENTICATED', message)
  }

  function tokenOf(request: FastifyRequest, reply: FastifyReply, kind: 'token' | 'worker token'): string {
    const credentials = credentialsOf(request.headers)
    if (credentials.kind === 'token') return credentials.token
    if (credentials.kind === 'unreadable') return refuseCredentials(request, reply, credentials.problem)
    reply.header('www-authenticate', CHALLENGE)
    const message = `Send a ${kind}: Authorization: Bearer <token>, X-API-Key: <token>, or as the password of HTTP Basic`
    throw new IchidoError('UNAUTHENTICATED', message)
  }

  /** Without tokens there are no sessions. A cookie is then left from another server or store, and means nothing. */
  const mayBeLocal = ({ kind }: Credentials) => openMode && (kind === 'none' || kind === 'session')

  /** A request that only a page of this server can send. */
  function acceptSession(request: FastifyRequest, secret: string, session: Session): Caller {
    ownPages.requireFor(request, secret)
    request.session = { ...session, secret }
    return session.caller
  }

  async function authenticateCaller(request: FastifyRequest, reply: FastifyReply): Promise<Caller> {
    const credentials = credentialsOf(request.headers, cookie.name)
    if (mayBeLocal(credentials) && !(await access.isAuthRequired())) {
      requireDirect(request)
      if (credentials.kind === 'session') reply.header('set-cookie', cookie.cleared)
      return LOCAL_ADMIN
    }
    if (credentials.kind === 'session') {
      const session = await sessions.authenticate(credentials.secret)
      if (session !== null) return acceptSession(request, credentials.secret, session)
      reply.header('set-cookie', cookie.cleared)
      refuseCredentials(request, reply, 'The session has expired or was ended; sign in again')
    }
    return (await access.authenticate(tokenOf(request, reply, 'token'))) ?? refuseCredentials(request, reply)
  }

  /** These routes also answer while the store is down. */
  async function authenticateFromMemory(request: FastifyRequest, reply: FastifyReply): Promise<Caller> {
    const known = () => {
      const { headers } = request
      const credentials = credentialsOf(headers, cookie.name)
      if (mayBeLocal(credentials) && access.wasOpen() && openModeRefusal(direct(request)) === null) {
        return LOCAL_ADMIN
      }
      if (credentials.kind === 'session') {
        const session = sessions.lastKnown(credentials.secret)
        return session === null ? null : acceptSession(request, credentials.secret, session)
      }
      return access.lastKnownCaller(sentToken(headers) ?? '')
    }
    if ((await checkStore()) !== 'ok') return known() ?? authenticateCaller(request, reply)
    const asked = authenticateCaller(request, reply)
    const caller = await within(deps.world, STORE_TIMEOUT_MS, asked, null).catch((error: unknown) => {
      if (isOutage(error)) return null
      throw error
    })
    return caller ?? known() ?? asked
  }

  async function authenticateWorker(request: FastifyRequest, reply: FastifyReply): Promise<WorkerIdentity> {
    const worker = await workers.authenticate(tokenOf(request, reply, 'worker token'))
    if (worker === 'revoked') throw wasRevoked()
    if (worker === null) refuseCredentials(request, reply, 'The worker token is unknown or has expired')
    workers.seen(worker.workerId)
    return worker
  }

  async function authenticateStream(request: FastifyRequest, reply: FastifyReply, token: string): Promise<Caller> {
    const { job_id: jobId } = request.params as { job_id: string }
    const caller = await streamTokens.verify(token, jobId.toLowerCase())
    // A stream token of open mode is bound by the rules of open mode.
    if (caller === LOCAL_ADMIN) requireDirect(request)
    return caller ?? refuseCredentials(request, reply, 'The stream token is wrong, for another job, or has expired')
  }

  app.decorate('refuseCredentials', refuseCredentials)
  app.decorateRequest('caller', null)
  app.decorateRequest('worker', null)
  app.decorateRequest('session', null)
  app.addHook('onRequest', async (request, reply) => {
    const { config } = request.routeOptions
    const { ability, workersToo = false, streamTokens: takesStreamToken = false, evenWithoutStore = false } = config
    if (request.is404 || ability === 'public') return
    if (ability === undefined) throw new Error(`The route ${request.routeOptions.url} does not say who may call it`)
    if (ability === 'worker' || (workersToo && sentByWorker(request))) {
      request.worker = await authenticateWorker(request, reply)
      rates.admitWorker(request.worker)
      return
    }
    const streamToken = takesStreamToken ? streamTokenOf(request) : undefined
    const authenticate = evenWithoutStore ? authenticateFromMemory : authenticateCaller
    const caller = await (streamToken === undefined
      ? authenticate(request, reply)
      : authenticateStream(request, reply, streamToken))
    rates.admit(caller)
    if (!can(caller, ability)) {
      throw new IchidoError('FORBIDDEN', `The role ${caller.role} may not do this`)
    }
    request.caller = caller
  })
}

/**
 * The caller of a request before the framework has it; null: the framework must find out, also about a session. In open
 * mode the store is asked every time.
 */
export function callerAtOnce(
  access: AccessService,
  openMode: boolean,
  cookieName: string,
  request: DirectRequest,
): Caller | Promise<Caller | null> | null {
  const { headers } = request
  const token = sentToken(headers)
  if (token !== undefined) return access.knownCaller(token)
  // Unreadable credentials count, too: a request with credentials is never the `local` of open mode.
  if (!openMode || credentialsOf(headers, cookieName).kind !== 'none' || openModeRefusal(request) !== null) return null
  return access.isAuthRequired().then(
    (required) => (required ? null : LOCAL_ADMIN),
    () => null,
  )
}

/** Refuses a request that open mode may not serve as `local`. */
function requireDirect(request: FastifyRequest): void {
  const problem = openModeRefusal(direct(request))
  if (problem !== null) throw new IchidoError('OPEN_MODE_REFUSED', problem)
}

function direct({ headers, raw, protocol }: FastifyRequest): DirectRequest {
  return { headers, httpVersion: raw.httpVersion, protocol }
}

function sentByWorker(request: FastifyRequest): boolean {
  return sentToken(request.headers)?.startsWith(WORKER_TOKEN_PREFIX) ?? false
}

/** An EventSource sends it in the URL. Other clients send it like other tokens. */
function streamTokenOf({ query, headers }: FastifyRequest): string | undefined {
  const { stream_token: inUrl } = query as { stream_token?: unknown }
  if (inUrl !== undefined) return String(inUrl)
  const token = sentToken(headers)
  return token?.startsWith(STREAM_TOKEN_PREFIX) ? token : undefined
}

/** The credentials of a request: a token, the secret of a session, none, or something that is not a token. */
type Credentials =
  | { kind: 'token'; token: string }
  | { kind: 'session'; secret: string }
  | { kind: 'none' }
  | { kind: 'unreadable'; problem: string }

const NONE: Credentials = { kind: 'none' }

/**
 * The only place that reads credentials from the headers of a request. Node keeps the first of several Authorization
 * headers, and joins several X-API-Key headers with a comma and a space, which no token has. A token counts before a
 * session. @param cookieName the cookie of sessions; null: only tokens count.
 */
export function credentialsOf(headers: IncomingHttpHeaders, cookieName: string | null = null): Credentials {
  const sent = tokenIn(headers)
  if (sent.kind !== 'none' || cookieName === null) return sent
  const secret = sessionSecretOf(headers, cookieName)
  return secret === undefined ? NONE : { kind: 'session', secret }
}

/** Undefined: the request has no cookie of this name. Browsers send the one with the longest path first. */
export function sessionSecretOf({ cookie = '' }: IncomingHttpHeaders, name: string): string | undefined {
  const found = cookie.split(';').find((part) => part.trimStart().startsWith(`${name}=`))
  return found?.slice(found.indexOf('=') + 1).trim()
}

function tokenIn({ authorization, 'x-api-key': apiKey }: IncomingHttpHeaders): Credentials {
  const fromAuthorization = authorization === undefined ? NONE : readAuthorization(authorization)
  if (apiKey === undefined || fromAuthorization.kind === 'unreadable') return fromAuthorization
  const fromApiKey = readToken(String(apiKey).trim(), 'X-API-Key must be one token')
  if (fromAuthorization.kind !== 'token' || fromApiKey.kind !== 'token') return fromApiKey
  if (fromApiKey.token === fromAuthorization.token) return fromApiKey
  return unreadable('Authorization and X-API-Key carry different tokens; send one of them')
}

/** Undefined: the request has no token, or an unreadable one. */
export function sentToken(headers: IncomingHttpHeaders): string | undefined {
  const credentials = credentialsOf(headers)
  return credentials.kind === 'token' ? credentials.token : undefined
}

function readAuthorization(header: string): Credentials {
  const [, scheme = '', value = ''] = /^(\w+) +(\S+) *$/.exec(header) ?? []
  switch (scheme.toLowerCase()) {
    case 'bearer':
      return readToken(value, BAD_AUTHORIZATION)
    case 'basic': {
      const [, password = ''] = /^[^:]*:(.*)$/s.exec(Buffer.from(value, 'base64').toString('utf8')) ?? []
      return readToken(password, 'HTTP Basic must have the token as its password, with any user name')
    }
    default:
      return unreadable(BAD_AUTHORIZATION)
  }
}

function readToken(text: string, problem: string): Credentials {
  return TOKEN.test(text) ? { kind: 'token', token: text } : unreadable(problem)
}

function unreadable(problem: string): Credentials {
  return { kind: 'unreadable', problem }
}
