import { z } from 'zod'
import { quota } from '../../../contract/common/shapes.ts'
import { putQuotaRequest, quotaUser } from '../../../contract/quotas.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import type { ApiInstance, RouteContext } from '../context.ts'

const tags = ['quotas']
const params = z.object({
  user_id: quotaUser.meta({ description: '`*` stands for everybody who has no limits of their own' }),
})

export function quotaRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: "Show a user's limits and what is used of them",
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
        summary: "Set a user's limits; what is left out is not limited",
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
        summary: 'Go back to the limits of `*`',
        params,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND'),
      },
    },
    (request) => services.quotas.clear(callerOf(request), request.params.user_id),
  )
}
