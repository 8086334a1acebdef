import { z } from 'zod'
import { key, page } from '../../../contract/common/shapes.ts'
import { extendKeyRequest, listKeysQuery } from '../../../contract/keys.ts'
import { parseKey } from '../../../core/keys/key.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const LIST = 'keys'
const params = z.object({ key: z.string().refine((text) => parseKey(text).ok, 'is not an idempotency key') })
/** Several users may use the same key, and one user may use it for several operations. */
const keys = z.object({ data: z.array(key) })

export function keyRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/idempotency-keys',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['idempotency keys'],
        summary: 'List keys, newest first',
        querystring: listKeysQuery,
        response: answers({ 200: ['A page of keys', page(key)] }),
      },
    },
    async (request) => {
      const { active = false, limit, cursor } = request.query
      return cursorOut(LIST, await services.keys.list(callerOf(request), active, limit, cursorIn(LIST, cursor)))
    },
  )

  app.get(
    '/v1/idempotency-keys/:key',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags: ['idempotency keys'],
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
        tags: ['idempotency keys'],
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
