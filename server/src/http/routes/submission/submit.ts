import { IchidoError } from '@ichido/sdk/protocol'
import { batchResponse, submitResponse } from '../../../contract/common/shapes.ts'
import { batchRequest } from '../../../contract/jobs.ts'
import { type SubmitInput, submitRequest } from '../../../contract/submit.ts'
import { describeProblem } from '../../../core/json/problem.ts'
import type { SubmitOutcome } from '../../../services/submission/submit-job.ts'
import { refusalError, type Submission } from '../../../services/submission/submit-job.ts'
import { callerOf } from '../../auth/auth.ts'
import { BATCH_BODY_BYTES_MAX, bodyBytesFor } from '../../server/bodies.ts'
import { errorBody, JSON_TYPE, statusOf, toIchidoError } from '../../server/errors.ts'
import { answers, errorAnswer, WITH_BODY } from '../../server/openapi.ts'
import type { ApiInstance, RouteContext } from '../context.ts'
import { bodyKey, keyOf } from './submit-key.ts'

const CONFLICTS = ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED', 'MAXIMUM_REACHED', 'RESERVATION_NOT_ACTIVE'] as const

export function submitRoutes(app: ApiInstance, { services, mismatchStatus }: RouteContext): void {
  /** The stored answer is sent as it is, without a detour through an object: a replay is the same to the byte. */
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
      const settled = await services.submission.submitMany(caller, request.body.jobs, readItem)
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

function readItem(item: unknown): Submission {
  const input = parseItem(item)
  return { input, options: { key: bodyKey(input) } }
}

function parseItem(item: unknown): SubmitInput {
  const parsed = submitRequest.safeParse(item)
  if (parsed.success) return parsed.data
  const { field, message } = describeProblem(parsed.error)
  throw new IchidoError('INVALID_PAYLOAD', message, { field })
}
