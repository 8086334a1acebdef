import { z } from 'zod'
import { quota } from '../../../contract/common/shapes.ts'
import { putQuotaRequest, quotaUser } from '../../../contract/quotas.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import type { ApiInstance, RouteContext } from '../context.ts'

const tags = ['quotas']
const params = z.object({
  user_id: quotaUser.meta({ description: '`*` stands for every user without own limits' }),
})

export function quotaRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: "Show a user's limits and their use",
        params,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND'),
      },
    },
    (request) => services.quotas.get(callerOf(request), request.params.user_id),
  )

  app.put(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: "Set a user's limits; a limit that is left out is removed",
        params,
        body: putQuotaRequest,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    (request) => services.quotas.put(callerOf(request), request.params.user_id, request.body),
  )

  app.delete(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: "Remove a user's limits; those of `*` apply again",
        params,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND'),
      },
    },
    (request) => services.quotas.clear(callerOf(request), request.params.user_id),
  )
}
