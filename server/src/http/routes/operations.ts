import { z } from 'zod'
import { page, pageQuery, uuid } from '../../contract/common.ts'
import { operation, operationDryRun, operationRequest } from '../../contract/operations.ts'
import { jobFilterOf } from '../../services/jobs/job-filter.ts'
import type { Choice } from '../../services/operations/operations.ts'
import { callerOf } from '../auth/auth.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'
import { deadFilterOf } from './dead-letters.ts'

const tags = ['operations']
const params = z.object({ operation_id: uuid })

export function operationRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { operations } = services

  app.post(
    '/v1/operations',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Cancel, retry or redrive several jobs, or all that match',
        description:
          'The server changes the jobs one batch after the other, also after a restart. Jobs that are made after the operation ' +
          'began are not part of it. A retry that finds the quota full is refused; a redrive waits. Use the id of the ' +
          'operation to read its progress or abort it.',
        body: operationRequest,
        response: answers(
          { 200: ['With `dry_run`: the counts', operationDryRun], 202: ['The operation', operation] },
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { dry_run, per_second } = request.body
      const choice = choiceOf(request.body)
      const caller = callerOf(request)
      if (dry_run) return operations.dryRun(caller, choice)
      return reply.code(202).send(await operations.begin(caller, choice, per_second ?? null))
    },
  )

  app.get(
    '/v1/operations',
    {
      config: { ability: 'readOwn', shared: true },
      schema: {
        tags,
        summary: 'List operations, newest first',
        querystring: pageQuery,
        response: answers({ 200: ['A page of operations', page(operation)] }),
      },
    },
    (request) =>
      listPage('operations', request.query, (limit, after) => operations.list(callerOf(request), limit, after)),
  )

  app.get(
    '/v1/operations/:operation_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show the progress of an operation',
        params,
        response: answers({ 200: ['The operation', operation] }, 'NOT_FOUND'),
      },
    },
    (request) => operations.get(callerOf(request), request.params.operation_id),
  )

  app.post(
    '/v1/operations/:operation_id/abort',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Abort an operation',
        description: 'Jobs that were already changed stay so. All others stay as they are.',
        params,
        response: answers({ 200: ['The operation', operation] }, 'NOT_FOUND', 'ALREADY_ENDED'),
      },
    },
    (request) => operations.abort(callerOf(request), request.params.operation_id),
  )
}

function choiceOf(body: z.output<typeof operationRequest>): Choice {
  const jobIds = body.job_ids ?? null
  if (body.action === 'redrive') return { action: body.action, jobIds, filter: deadFilterOf(body.filter ?? {}) }
  return { action: body.action, jobIds, filter: jobFilterOf(body.filter ?? {}) }
}
