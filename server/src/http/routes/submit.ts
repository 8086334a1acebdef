import type { IncomingMessage } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { check, page } from '../../contract/common.ts'
import {
  batchRequest,
  batchResponse,
  extendKeyRequest,
  key,
  listKeysQuery,
  type SubmitInput,
  submitRequest,
  submitResponse,
} from '../../contract/submit.ts'
import { type KeyParse, parseKey, parseKeyHeader } from '../../core/keys/key.ts'
import { refusalError, type Submission, type SubmitOutcome } from '../../services/submission/submit-job.ts'
import { callerOf } from '../auth/auth.ts'
import { BATCH_BODY_BYTES_MAX, bodyBytesFor } from '../server/body-limits.ts'
import { errorBody, JSON_TYPE, statusOf, toIchidoError } from '../server/errors.ts'
import { answers, errorAnswer, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

const CONFLICTS = ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED', 'MAXIMUM_REACHED', 'RESERVATION_NOT_ACTIVE'] as const

export function submitRoutes(app: ApiInstance, { services, mismatchStatus }: RouteContext): void {
  // The stored answer is sent as text, so that a replay has the same bytes.
  app.post(
    '/v1/jobs',
    {
      bodyLimit: bodyBytesFor(services.deps.limits.payloadBytesMax),
      config: { ability: 'submit', takesKey: true },
      schema: {
        tags: ['jobs'],
        summary: 'Submit a job',
        description:
          'With a key (header `Idempotency-Key`, or `idempotency_key` in the body), the same request makes only one job. ' +
          'Every repeat gets the first answer, with `Idempotent-Replayed: true`.',
        body: submitRequest,
        response: {
          ...answers({ 201: ['The job was accepted', submitResponse] }, 'KEY_CONFLICT', ...CONFLICTS, ...WITH_BODY),
          [mismatchStatus]: errorAnswer('IDEMPOTENCY_KEY_REUSED', ...(mismatchStatus === 409 ? CONFLICTS : [])),
        },
      },
    },
    async (request, reply) => {
      const key = keyOf(request.raw, request.body)
      const outcome = await services.submission.submit(callerOf(request), request.body, { key })
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      if (outcome.kind === 'replayed') reply.header('idempotent-replayed', 'true')
      return reply.code(outcome.status).header('content-type', JSON_TYPE).send(outcome.body)
    },
  )

  app.post(
    '/v1/jobs/batch',
    {
      bodyLimit: BATCH_BODY_BYTES_MAX,
      config: { ability: 'submit' },
      schema: {
        tags: ['jobs'],
        summary: 'Submit up to 1,000 jobs',
        description: 'Each job has its own key and its own outcome, and a refused job does not affect the others.',
        body: batchRequest,
        response: answers({ 200: ['The outcome of each job', batchResponse] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      if (request.headers['idempotency-key'] !== undefined) {
        throw new IchidoError('INVALID_PAYLOAD', 'A batch has no Idempotency-Key; give each job its idempotency_key')
      }
      const caller = callerOf(request)
      const settled = await services.submission.submitMany(caller, request.body.jobs, (item) => readSubmission(item))
      const answers = settled.map((one) => render(one, request.id))
      return reply.header('content-type', JSON_TYPE).send(`{"data":[${answers.join(',')}]}`)
    },
  )

  function render(settled: PromiseSettledResult<SubmitOutcome>, requestId: string): string {
    if (settled.status === 'rejected') return renderError(settled.reason, requestId)
    const outcome = settled.value
    if (outcome.kind === 'refused') return renderError(refusalError(outcome.refusal), requestId)
    return `{"status":${outcome.status},"replayed":${outcome.kind === 'replayed'},"body":${outcome.body}}`
  }

  function renderError(thrown: unknown, requestId: string): string {
    const error = toIchidoError(thrown)
    if (error.code === 'INTERNAL') app.log.error({ err: thrown, requestId }, 'an item of a batch failed')
    return JSON.stringify({ status: statusOf(error, mismatchStatus), replayed: false, ...errorBody(error, requestId) })
  }
}

/** Reads one job of a request, and its key. */
export function readSubmission(item: unknown, keyOfItem: (input: SubmitInput) => string | null = bodyKey): Submission {
  const input = check(submitRequest, item)
  return { input, options: { key: keyOfItem(input) } }
}

export function keyRoutes(app: ApiInstance, { services }: RouteContext): void {
  const tags = ['idempotency keys']
  const params = z.object({ key: z.string().refine((text) => parseKey(text).ok, 'is not an idempotency key') })
  // Several users may use the same key, and one user may use it for several operations.
  const keys = z.object({ data: z.array(key) })

  app.get(
    '/v1/idempotency-keys',
    {
      config: { ability: 'readOwn', shared: true },
      schema: {
        tags,
        summary: 'List keys, newest first',
        querystring: listKeysQuery,
        response: answers({ 200: ['A page of keys', page(key)] }),
      },
    },
    async (request) => {
      const { active = false } = request.query
      return listPage('keys', request.query, (limit, after) =>
        services.keys.list(callerOf(request), active, limit, after),
      )
    },
  )

  app.get(
    '/v1/idempotency-keys/:key',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a key (percent-encoded in the path)',
        params,
        response: answers({ 200: ['The key, its owner and its job', keys] }, 'NOT_FOUND'),
      },
    },
    async (request) => ({ data: await services.keys.get(callerOf(request), request.params.key) }),
  )

  app.patch(
    '/v1/idempotency-keys/:key',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Extend the lifetime of a key',
        params,
        body: extendKeyRequest,
        response: answers({ 200: ['The key', keys] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    async (request) => ({
      data: await services.keys.extend(callerOf(request), request.params.key, request.body.ttl_hours),
    }),
  )
}

type Keyed = Pick<SubmitInput, 'idempotency_key'>

/** The key of a request, from the header or the body. Both may have it if they agree. */
export function keyOf(request: IncomingMessage, input: Keyed): string | null {
  const header = request.headers['idempotency-key']
  if (header === undefined) return bodyKey(input)
  if (timesSent(request, 'idempotency-key') > 1) {
    throw new IchidoError('INVALID_PAYLOAD', 'Idempotency-Key was sent twice', { field: 'Idempotency-Key' })
  }
  const fromHeader = checked(parseKeyHeader(String(header)), 'Idempotency-Key')
  if (input.idempotency_key !== undefined && bodyKey(input) !== fromHeader) throw new IchidoError('KEY_CONFLICT')
  return fromHeader
}

/** Node joins the values of a header that comes more than once. */
function timesSent({ rawHeaders }: IncomingMessage, header: string): number {
  return rawHeaders.filter((text, i) => i % 2 === 0 && text.toLowerCase() === header).length
}

function bodyKey(input: Keyed): string | null {
  return input.idempotency_key === undefined ? null : checked(parseKey(input.idempotency_key), 'idempotency_key')
}

function checked(parsed: KeyParse, field: string): string {
  if (parsed.ok) return parsed.key
  throw new IchidoError('INVALID_PAYLOAD', `${field} ${parsed.problem}`, { field })
}
