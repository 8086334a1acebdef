import { IchidoError } from '@ichido/sdk/protocol'
import { jobDetail, page } from '../../../contract/common/shapes.ts'
import * as contract from '../../../contract/dead-letters.ts'
import type { DeadFilter } from '../../../services/dead-letters/dead-letters.ts'
import { callerOf } from '../../auth/auth.ts'
import { bodyBytesFor } from '../../server/bodies.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import { type ApiInstance, jobParams, type RouteContext } from '../context.ts'
import { keyOf } from '../submission/submit-key.ts'

const TAG = 'dead letters'

export function deadLetterRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { deadLetters } = services

  app.get(
    '/v1/dead-letters',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: [TAG],
        summary: 'List dead letters, newest first',
        querystring: contract.listDeadLettersQuery,
        response: answers({ 200: ['A page of dead letters', page(contract.deadLetter)] }),
      },
    },
    async (request) => {
      const { limit, cursor, ...filter } = request.query
      const { data, next } = await deadLetters.list(callerOf(request), filterOf(filter), limit, placeOf(cursor))
      return { data, next_cursor: next === null ? null : contract.encodePlace(next) }
    },
  )

  app.get(
    '/v1/dead-letters/groups',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: [TAG],
        summary: 'Group dead letters by queue, kind and error code',
        querystring: contract.groupsQuery,
        response: answers({ 200: ['Up to 200 groups, the largest first', contract.groups] }),
      },
    },
    async (request) => ({ data: await deadLetters.groups(callerOf(request), filterOf(request.query)) }),
  )

  app.get(
    '/v1/dead-letters/:job_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: [TAG],
        summary: 'Show a dead letter with its job and runs',
        params: jobParams,
        response: answers({ 200: ['The dead letter', contract.deadLetterDetail] }, 'NOT_FOUND'),
      },
    },
    (request) => deadLetters.get(callerOf(request), request.params.job_id),
  )

  app.post(
    '/v1/jobs/:job_id/retry',
    {
      bodyLimit: bodyBytesFor(services.deps.limits.payloadBytesMax),
      config: { ability: 'submit', takesKey: true },
      schema: {
        tags: ['jobs'],
        summary: 'Retry a job that ended without success',
        description:
          'The same job gets another run, due now, and a full retry budget. With `payload`, a new job is submitted in ' +
          'its place (`replaces_job_id`), which may have an `Idempotency-Key`.',
        params: jobParams,
        body: contract.retryRequest,
        response: answers(
          { 200: ['The job', jobDetail], 201: ['The new job in its place', jobDetail] },
          'NOT_FOUND',
          'NOT_ENDED',
          'ALREADY_ENDED',
          'ALREADY_REPLACED',
          'KEY_TAKEN',
          'IDEMPOTENCY_KEY_REUSED',
          'QUOTA_EXCEEDED',
          'COST_LIMIT_EXCEEDED',
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { job_id } = request.params
      // `null` is a payload, too.
      if (!('payload' in request.body)) return deadLetters.retry(callerOf(request), job_id)
      const key = keyOf(request.raw, {})
      const { job, replayed } = await deadLetters.replace(callerOf(request), job_id, request.body.payload, key)
      if (replayed) reply.header('idempotent-replayed', 'true')
      return reply.code(201).send(job)
    },
  )
}

export function filterOf(input: contract.DeadFilterInput): DeadFilter {
  return {
    queue: input.queue ?? null,
    kind: input.kind ?? null,
    errorCode: input.error_code ?? null,
    userId: input.user_id ?? null,
    deadFromMs: input.dead_after ?? null,
    deadToMs: input.dead_before ?? null,
    text: input.text ?? null,
  }
}

function placeOf(cursor: string | undefined) {
  if (cursor === undefined) return null
  const place = contract.decodePlace(cursor)
  if (place !== null) return place
  throw new IchidoError('INVALID_PAYLOAD', 'cursor must be the next_cursor of an earlier answer of this list', {
    field: 'cursor',
  })
}
