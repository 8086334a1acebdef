import { ERRORS, type ErrorBody, type ErrorCode, IchidoError } from '@ichido/sdk/protocol'
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { FastifyRouteSchemaDef, FastifySchemaCompiler } from 'fastify/types/schema.js'
import { z } from 'zod'
import { describeProblem, errorOf } from '../../core/json/problem.ts'
import { clip } from '../../core/json/text.ts'
import { BadValue, StoreFull, StoreUnavailable } from '../../core/node/store-errors.ts'
import { BODY_BYTES_MAX } from './body-limits.ts'

const AN_ID = '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07'

export const JSON_TYPE = 'application/json; charset=utf-8'

/** The status for a key that was used with another request: 409, or the 422 of the IETF draft. */
export type MismatchStatus = 409 | 422

const RETRY_AFTER_SECONDS: Partial<Record<ErrorCode, number>> = { UNAVAILABLE: 1, STORE_FULL: 5 }
/** The length to which an unknown path is cut. */
const PATH_MAX = 201

/** Fastify's errors as errors of the table. */
const FRAMEWORK_ERRORS: Readonly<Record<string, (bodyBytesMax: number) => IchidoError>> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () => new IchidoError('UNSUPPORTED_MEDIA_TYPE'),
  FST_ERR_CTP_BODY_TOO_LARGE: (bytesMax) =>
    new IchidoError('PAYLOAD_TOO_LARGE', `The request body is larger than ${bytesMax} bytes`),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: () =>
    new IchidoError('INVALID_PAYLOAD', 'The body is not as long as Content-Length says'),
  FST_ERR_BAD_URL: () => new IchidoError('INVALID_PAYLOAD', 'The path has a percent-encoding that is not valid UTF-8'),
  FST_ERR_MAX_PARAM_LENGTH: () => new IchidoError('NOT_FOUND'),
}

/** An error of the table for anything that was thrown. An unexpected error is INTERNAL, without details. */
export function toIchidoError(error: unknown, bodyBytesMax = BODY_BYTES_MAX): IchidoError {
  if (error instanceof IchidoError) return error
  if (error instanceof StoreFull) return new IchidoError('STORE_FULL', error.message, { place: error.place })
  if (error instanceof StoreUnavailable) return new IchidoError('UNAVAILABLE', ERRORS.UNAVAILABLE.sentence)
  if (error instanceof BadValue)
    return new IchidoError('INVALID_PAYLOAD', 'The store cannot hold a value of this request')
  if (error instanceof Error && 'code' in error && typeof error.code === 'string') {
    // Node throws this if a client disconnects while it sends. Errors of other connections have the code, but not the
    // message.
    if (error.code === 'ECONNRESET' && error.message === 'aborted')
      return new IchidoError('INVALID_PAYLOAD', 'The body broke off')
    const known = FRAMEWORK_ERRORS[error.code]
    if (known !== undefined) return known(bodyBytesMax)
  }
  return new IchidoError('INTERNAL')
}

export function errorBody(error: IchidoError, requestId: string): ErrorBody {
  return { error: { code: error.code, message: error.message, details: error.details, request_id: requestId } }
}

/** The form of an error body. The compat paths have their own. */
type ErrorForm = (error: IchidoError, requestId: string) => object

export function statusOf(error: IchidoError, mismatchStatus: MismatchStatus): number {
  return error.code === 'IDEMPOTENCY_KEY_REUSED' ? mismatchStatus : error.status
}

type AnswerError = (reply: FastifyReply, thrown: unknown) => FastifyReply

/** Logs an error with its request_id: unexpected errors always, refusals at `info`. */
export function logError(log: FastifyBaseLogger, thrown: unknown, request: Asked): void {
  const { code } = toIchidoError(thrown)
  if (code === 'INTERNAL') log.error({ err: thrown, ...request }, 'a request failed')
  else log.info({ ...request, code, why: thrown instanceof Error ? thrown.message : '' }, 'a request was refused')
}

/** The request without its query, which may contain a token. */
export interface Asked {
  requestId: string
  method: string
  path: string
  from: string | undefined
}

export interface ErrorAnswer {
  status: number
  headers: Record<string, string>
  body: string
}

export function errorAnswer(
  error: IchidoError,
  requestId: string,
  mismatchStatus: MismatchStatus,
  form: ErrorForm = errorBody,
): ErrorAnswer {
  const headers: Record<string, string> = { 'should-retry': String(error.retryable) }
  const { retryAfterMs } = error
  const retryAfter = retryAfterMs === undefined ? RETRY_AFTER_SECONDS[error.code] : Math.ceil(retryAfterMs / 1000)
  if (retryAfter !== undefined) headers['retry-after'] = String(retryAfter)
  return { status: statusOf(error, mismatchStatus), headers, body: JSON.stringify(form(error, requestId)) }
}

/** Answers the errors of all routes, and of unknown paths. */
export function installErrors(
  app: FastifyInstance,
  mismatchStatus: MismatchStatus,
  formOf: (path: string) => ErrorForm,
): AnswerError {
  const answer: AnswerError = (reply, thrown) => {
    const error = toIchidoError(thrown, reply.request.routeOptions.bodyLimit)
    const { id: requestId, method, url, ip } = reply.request
    const path = pathOf(url)
    logError(reply.log, thrown, { requestId, method, path, from: ip })
    const { status, headers, body } = errorAnswer(error, requestId, mismatchStatus, formOf(path))
    return reply
      .code(status)
      .headers({ ...headers, 'x-request-id': reply.request.id, 'content-type': JSON_TYPE })
      .send(body)
  }

  app.setErrorHandler((thrown, _request, reply) => answer(reply, thrown))
  const notFound = ({ method, url }: FastifyRequest) =>
    new IchidoError('NOT_FOUND', `There is no ${method} ${pathOf(url)}`)
  app.setNotFoundHandler((request, reply) => answer(reply, notFound(request)))
  // The refusal comes before the body is read.
  app.addHook('onRequest', (request, _reply, done) => done(request.is404 ? notFound(request) : undefined))
  return answer
}

/** The path without the query, and without the host and credentials of an absolute request line. */
function pathOf(url: string): string {
  const path = url.split('?', 1)[0] ?? ''
  return clip(path.replace(/^\w+:\/\/[^/]*/, ''), PATH_MAX)
}

/** Without this option Fastify loads compilers of its own, 170 files, which nothing uses. */
export const schemaController = { compilersFactory: { buildValidator: unset, buildSerializer: unset } }

function unset(): never {
  throw new TypeError('installValidation sets the compilers')
}

/** The schemas check requests. Answers are typed, and sent without a check. */
export function installValidation(app: FastifyInstance): void {
  app.setValidatorCompiler(compileValidator)
  app.setSerializerCompiler(() => JSON.stringify)
}

const compileValidator: FastifySchemaCompiler<unknown> = ({ schema, httpPart }: FastifyRouteSchemaDef<unknown>) => {
  if (!(schema instanceof z.ZodType)) throw new TypeError('A route describes its requests with zod')
  return (data: unknown) => {
    // Fastify passes null if there is no body. Then every field is missing.
    const parsed = schema.safeParse(httpPart === 'body' ? (data ?? {}) : data)
    if (parsed.success) return { value: parsed.data }
    return { error: httpPart === 'params' ? noSuch(parsed.error, data) : refusal(parsed.error, httpPart) }
  }
}

function refusal(error: z.ZodError, httpPart: string | undefined): IchidoError {
  return errorOf(describeProblem(error, httpPart === 'querystring' ? 'query parameter' : 'field'))
}

/** A path parameter of the wrong form cannot name anything, so it is not found. */
function noSuch(error: z.ZodError, params: unknown): IchidoError {
  const { field, message } = describeProblem(error)
  const [issue] = error.issues
  if (issue?.code !== 'invalid_format' || issue.format !== 'uuid')
    return new IchidoError('NOT_FOUND', message, { field })
  const { [field]: given } = z.record(z.string(), z.string()).parse(params)
  const what = field.replace(/_id$/, '').replaceAll('_', ' ')
  return new IchidoError('NOT_FOUND', `There is no ${what} ${JSON.stringify(given)}: ids look like ${AN_ID}`, { field })
}

/** The paths of all routes that are registered after this call. */
export function collectPaths(app: FastifyInstance): ReadonlySet<string> {
  const paths = new Set<string>()
  app.addHook('onRoute', ({ url }) => void paths.add(url))
  return paths
}

/** Answers 405 for other methods of a known path; Fastify would answer 404. */
export function refuseOtherMethods(app: FastifyInstance, paths: Iterable<string>): void {
  for (const url of paths) {
    const taken = app.supportedMethods.filter((method) => app.hasRoute({ method, url }))
    const allow = taken.sort().join(', ')
    app.route({
      url,
      method: app.supportedMethods.filter((method) => !taken.includes(method)),
      config: { ability: 'public' },
      schema: { hide: true },
      onRequest: async (request, reply) => {
        reply.header('allow', allow)
        throw new IchidoError('METHOD_NOT_ALLOWED', `${request.method} is not allowed for this path; it takes ${allow}`)
      },
      handler: () => undefined,
    })
  }
}
