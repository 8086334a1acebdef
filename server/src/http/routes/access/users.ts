import { isUserName } from '../../../contract/access.ts'
import { page, user } from '../../../contract/common/shapes.ts'
import { listUsersQuery } from '../../../contract/quotas.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const LIST = 'users'

export function userRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/users',
    {
      config: { ability: 'readAll' },
      schema: {
        tags: ['quotas'],
        summary: 'List users by id, with their limits and their use',
        description: 'The list has every user who ever had a token or limits, or submitted or reserved.',
        querystring: listUsersQuery,
        response: answers({ 200: ['A page of users', page(user)] }),
      },
    },
    async (request) => {
      const { limit, cursor } = request.query
      const after = cursorIn(LIST, cursor, isUserName)
      return cursorOut(LIST, await services.quotas.listUsers(callerOf(request), limit, after))
    },
  )
}
