import { z } from 'zod'
import { createTokenRequest } from '../../../contract/access.ts'
import { newToken, page, token } from '../../../contract/common/shapes.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import type { ApiInstance, RouteContext } from '../context.ts'

const tags = ['tokens']
const params = z.object({ token_id: z.uuid().toLowerCase() })

export function tokenRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.post(
    '/v1/tokens',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'Make an API token',
        description: 'After the first token is made, every request needs a token. This cannot be undone.',
        body: createTokenRequest,
        response: answers({ 201: ['The token', newToken] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { user_id: userId, role, name = '', ttl_seconds: ttlSeconds = null } = request.body
      const made = await services.access.createToken(callerOf(request), { userId, role, name, ttlSeconds })
      return reply.code(201).send(made)
    },
  )

  app.get(
    '/v1/tokens',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'List tokens, without their secrets',
        response: answers({ 200: ['All tokens', page(token)] }),
      },
    },
    async (request) => ({ data: await services.access.listTokens(callerOf(request)), next_cursor: null }),
  )

  app.delete(
    '/v1/tokens/:token_id',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'Revoke a token',
        params,
        response: answers({ 204: ['The token is revoked'] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => {
      await services.access.revokeToken(callerOf(request), request.params.token_id)
      return reply.code(204).send()
    },
  )
}
