import { z } from 'zod'
import { page } from '../../../contract/common/shapes.ts'
import * as contract from '../../../contract/dead-letters.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'
import { filterOf } from './dead-letters.ts'

const TAG = 'dead letters'
const LIST = 'redrives'
const params = z.object({ redrive_id: z.uuid().toLowerCase() })

export function redriveRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { redrives } = services

  app.post(
    '/v1/dead-letters/redrive',
    {
      config: { ability: 'submit' },
      schema: {
        tags: [TAG],
        summary: 'Retry one, several or all matching dead letters',
        description:
          'Each job gets another run and a full retry budget. Jobs that find the quota full wait and are tried again. ' +
          'Dead letters that come after the redrive began are not part of it. Use its id to read its progress or abort it.',
        body: contract.redriveRequest,
        response: answers(
          { 200: ['With `dry_run`: the counts', contract.dryRun], 202: ['The redrive', contract.redrive] },
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { job_ids, filter, dry_run, per_second } = request.body
      const choice = { jobIds: job_ids ?? null, filter: filterOf(filter ?? {}) }
      const caller = callerOf(request)
      if (dry_run) return { dry_run: true, matched: await redrives.count(caller, choice) }
      return reply.code(202).send(await redrives.begin(caller, choice, per_second ?? null))
    },
  )

  app.get(
    '/v1/dead-letters/redrives',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: [TAG],
        summary: 'List redrives, newest first',
        querystring: contract.listRedrivesQuery,
        response: answers({ 200: ['A page of redrives', page(contract.redrive)] }),
      },
    },
    async (request) => {
      const { limit, cursor } = request.query
      return cursorOut(LIST, await redrives.list(callerOf(request), limit, cursorIn(LIST, cursor)))
    },
  )

  app.get(
    '/v1/dead-letters/redrives/:redrive_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: [TAG],
        summary: 'Show the progress of a redrive',
        params,
        response: answers({ 200: ['The redrive', contract.redrive] }, 'NOT_FOUND'),
      },
    },
    (request) => redrives.get(callerOf(request), request.params.redrive_id),
  )

  app.post(
    '/v1/dead-letters/redrives/:redrive_id/abort',
    {
      config: { ability: 'submit' },
      schema: {
        tags: [TAG],
        summary: 'Abort a redrive',
        description: 'Jobs that were already redriven stay so. All others stay dead letters.',
        params,
        response: answers({ 200: ['The redrive', contract.redrive] }, 'NOT_FOUND', 'ALREADY_ENDED'),
      },
    },
    (request) => redrives.abort(callerOf(request), request.params.redrive_id),
  )
}
