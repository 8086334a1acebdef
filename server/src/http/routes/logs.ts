import type { RunLogShape } from '@ichido/sdk/protocol'
import { IchidoError } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery } from '../../core/contract/list.ts'
import { page } from '../../core/contract/shapes.ts'
import { callerOf } from '../auth.ts'
import { answers } from '../openapi.ts'
import { type ApiInstance, jobParams, type RouteContext } from './context.ts'

const chunk = z
  .object({
    run_id: z.uuid(),
    run_no: z.int(),
    n: z.int(),
    stream: z.enum(['stdout', 'stderr']),
    text: z.string(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'LogChunk' }) satisfies z.ZodType<RunLogShape>

const PLACE = /^\d{1,9}\.\d{1,10}$/

export function logRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/jobs/:job_id/logs',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['jobs'],
        summary: 'Show what the runs of a job wrote, oldest first',
        params: jobParams,
        querystring: z.strictObject(listQuery),
        response: answers({ 200: ['A page of the log', page(chunk)] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const { limit, cursor } = request.query
      if (cursor !== undefined && !PLACE.test(cursor)) {
        throw new IchidoError('INVALID_PAYLOAD', 'cursor must be the next_cursor of an earlier answer of this list', {
          field: 'cursor',
        })
      }
      return services.logs.read(callerOf(request), request.params.job_id, limit, cursor ?? null)
    },
  )
}
