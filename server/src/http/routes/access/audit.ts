import { auditEntry, listAuditQuery } from '../../../contract/audit.ts'
import { page } from '../../../contract/common/shapes.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const LIST = 'audit'

export function auditRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/audit',
    {
      config: { ability: 'operate' },
      schema: {
        tags: ['audit'],
        summary: 'List who changed what, newest first',
        querystring: listAuditQuery,
        response: answers({ 200: ['A page of entries', page(auditEntry)] }),
      },
    },
    async (request) => {
      const { actor = null, action = null, subject = null, from = null, to = null, limit, cursor } = request.query
      const filter = { actor, action, subject, fromMs: from, toMs: to }
      return cursorOut(LIST, await services.audit.list(callerOf(request), filter, limit, cursorIn(LIST, cursor)))
    },
  )
}
