import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { type Caller, can } from '../../core/limits/roles.ts'
import type { Services } from '../../services/index.ts'
import { refusalError, type Submission } from '../../services/submission/submit-job.ts'
import { callerAtOnce } from '../auth/auth.ts'
import type { RequestRates } from '../auth/rates.ts'
import type { Metrics } from '../metrics/metrics.ts'
import { keyOf, readSubmission } from '../routes/submit.ts'
import { parseBody } from './bodies.ts'
import { type Asked, type ErrorAnswer, JSON_TYPE } from './errors.ts'
import { answerHeaders, requestId } from './headers.ts'

/** A body up to this size arrives whole, before anything reads it. */
const BODY_BYTES_MAX = 16 * 1024
const JSON_CONTENT = /^application\/json *(; *charset=utf-8)?$/i

export interface FastRouteOptions {
  services: Services
  metrics: Metrics
  rates: RequestRates
  openMode: boolean
  /** A request with a session is left to the framework, which checks that it comes from a page of this server. */
  cookieName: string
  protocol: 'http' | 'https'
  /** The path of `POST /v1/jobs`, with the base path. */
  path: string
  draining: AbortSignal
  errorAnswer(error: unknown, asked: Asked): ErrorAnswer
}

/**
 * Serves `POST /v1/jobs` in front of the framework, which takes as long for a request as the whole submission. It serves
 * valid requests of known callers and leaves every other request to the framework. So only one place refuses requests. A
 * test compares the answers of both.
 */
export function fastRoute(options: FastRouteOptions, framework: RequestListener): RequestListener {
  const { services, rates, openMode, cookieName, protocol, path } = options
  return (request, response) => {
    const bytes = request.method === 'POST' && request.url === path ? plainLength(request) : null
    const { headers, httpVersion } = request
    const direct = { headers, httpVersion, protocol }
    const found = bytes === null ? null : callerAtOnce(services.access, openMode, cookieName, direct)
    const serve = (caller: Caller | null) => {
      if (caller === null || !can(caller, 'submit')) return framework(request, response)
      const body: Buffer | null = request.readableLength === bytes ? request.read() : null
      const valid = body === null ? null : validSubmission(request, body)
      if (valid !== null && rates.admits(caller)) return void answer(options, caller, valid, request, response)
      // The stream has not ended yet, so the framework reads the whole body again.
      if (body !== null) request.unshift(body)
      framework(request, response)
    }
    if (found === null) return framework(request, response)
    // After this tick the body has arrived, if it came in the same packet as the head. The framework serves slower senders.
    process.nextTick(() => (found instanceof Promise ? void found.then(serve) : serve(found)))
  }
}

/** The length of the body; null if the body is long or not plain JSON. */
function plainLength({ headers }: IncomingMessage): number | null {
  const bytes = Number(headers['content-length'])
  const plain = headers['content-encoding'] === undefined && headers.expect === undefined
  return plain && bytes > 0 && bytes <= BODY_BYTES_MAX && JSON_CONTENT.test(headers['content-type'] ?? '')
    ? bytes
    : null
}

/** Null for a request that is not valid. */
function validSubmission(request: IncomingMessage, body: Buffer): Submission | null {
  try {
    return readSubmission(parseBody(body), (input) => keyOf(request, input))
  } catch {
    return null
  }
}

async function answer(
  { services, metrics, path, draining, errorAnswer }: FastRouteOptions,
  caller: Caller,
  { input, options }: Submission,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { world } = services.deps
  const began = world.monotonic()
  const id = requestId(request, world)
  const headers = answerHeaders(id)
  const send = (status: number, body: string) => {
    if (draining.aborted) headers.connection = 'close'
    headers['content-type'] = JSON_TYPE
    headers['content-length'] = String(Buffer.byteLength(body))
    response.writeHead(status, headers).end(body)
    const attempt = request.headers['ichido-attempt']
    metrics.answered({ method: 'POST', route: path, status, elapsedMs: world.monotonic() - began, attempt })
  }
  try {
    const outcome = await services.submission.submit(caller, input, options)
    if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
    if (outcome.kind === 'replayed') headers['idempotent-replayed'] = 'true'
    send(outcome.status, outcome.body)
  } catch (thrown) {
    const refused = errorAnswer(thrown, { requestId: id, method: 'POST', path, from: request.socket.remoteAddress })
    Object.assign(headers, refused.headers)
    send(refused.status, refused.body)
  }
}
