import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { type SubmitInput, submitRequest } from '../../../contract/submit.ts'
import { type Caller, can } from '../../../core/limits/roles.ts'
import type { Services } from '../../../services/index.ts'
import { refusalError } from '../../../services/submission/submit-job.ts'
import { callerAtOnce } from '../../auth/auth.ts'
import type { RequestRates } from '../../auth/request-rates.ts'
import type { Metrics } from '../../metrics/metrics.ts'
import { parseBody } from '../../server/bodies.ts'
import { type Asked, type ErrorAnswer, JSON_TYPE } from '../../server/errors.ts'
import { requestId } from '../../server/request-id.ts'
import { keyOf } from './submit-key.ts'

/** Of a body that is surely held whole before anybody reads it. */
const BODY_BYTES_MAX = 16 * 1024
const JSON_CONTENT = /^application\/json *(; *charset=utf-8)?$/i

export interface HotSubmitOptions {
  services: Services
  metrics: Metrics
  rates: RequestRates
  openMode: boolean
  protocol: 'http' | 'https'
  /** Of `POST /v1/jobs`. */
  path: string
  draining: AbortSignal
  errorAnswer(error: unknown, asked: Asked): ErrorAnswer
}

/**
 * `POST /v1/jobs` in front of the framework, which takes as long for a request as all of the submission does. It serves
 * what is sound and known at first sight; whatever else it meets it leaves to the framework, untouched: so there is one
 * place that refuses, and a test compares the answers of both ways.
 */
export function hotSubmit(options: HotSubmitOptions, framework: RequestListener): RequestListener {
  const { services, rates, openMode, protocol, path } = options
  return (request, response) => {
    const bytes = request.method === 'POST' && request.url === path ? plainLength(request) : null
    const { headers, httpVersion } = request
    const found = bytes === null ? null : callerAtOnce(services.access, openMode, { headers, httpVersion, protocol })
    const serve = (caller: Caller | null) => {
      if (caller === null || !can(caller, 'submit')) return framework(request, response)
      const body: Buffer | null = request.readableLength === bytes ? request.read() : null
      const sound = body === null ? null : soundRequest(request, body)
      if (sound !== null && rates.admits(caller)) return void answer(options, caller, sound, request, response)
      // Before its end was told, so that whoever reads next finds it as it came.
      if (body !== null) request.unshift(body)
      framework(request, response)
    }
    if (found === null) return framework(request, response)
    // What came in the same piece as the head is there at the end of this turn; whoever sends more slowly can wait longer.
    process.nextTick(() => (found instanceof Promise ? void found.then(serve) : serve(found)))
  }
}

/** How long the body is; null when it is long, or anything but plain JSON. */
function plainLength({ headers }: IncomingMessage): number | null {
  const bytes = Number(headers['content-length'])
  const plain = headers['content-encoding'] === undefined && headers.expect === undefined
  return plain && bytes > 0 && bytes <= BODY_BYTES_MAX && JSON_CONTENT.test(headers['content-type'] ?? '')
    ? bytes
    : null
}

interface Sound {
  input: SubmitInput
  key: string | null
}

function soundRequest(request: IncomingMessage, body: Buffer): Sound | null {
  try {
    const input = submitRequest.safeParse(parseBody(body))
    return input.success ? { input: input.data, key: keyOf(request, input.data) } : null
  } catch {
    return null
  }
}

async function answer(
  { services, metrics, path, draining, errorAnswer }: HotSubmitOptions,
  caller: Caller,
  { input, key }: Sound,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { world } = services.deps
  const began = world.monotonic()
  const id = requestId(request, world)
  const headers: Record<string, string> = { 'x-request-id': id, 'x-content-type-options': 'nosniff' }
  const send = (status: number, body: string) => {
    if (draining.aborted) headers.connection = 'close'
    headers['content-type'] = JSON_TYPE
    headers['content-length'] = String(Buffer.byteLength(body))
    response.writeHead(status, headers).end(body)
    const attempt = request.headers['ichido-attempt']
    metrics.answered({ method: 'POST', route: path, status, elapsedMs: world.monotonic() - began, attempt })
  }
  try {
    const outcome = await services.submission.submit(caller, input, { key })
    if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
    if (outcome.kind === 'replayed') headers['idempotent-replayed'] = 'true'
    send(outcome.status, outcome.body)
  } catch (thrown) {
    const refused = errorAnswer(thrown, { requestId: id, method: 'POST', path, from: request.socket.remoteAddress })
    Object.assign(headers, refused.headers)
    send(refused.status, refused.body)
  }
}
