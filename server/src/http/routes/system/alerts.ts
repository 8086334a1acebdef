import { alert, listAlertsQuery } from '../../../contract/alerts.ts'
import { page } from '../../../contract/common/shapes.ts'
import { answers } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const LIST = 'alerts'

export function alertRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/alerts',
    {
      config: { ability: 'readAll' },
      schema: {
        tags: ['alerts'],
        summary: 'List the open alerts, newest first',
        querystring: listAlertsQuery,
        response: answers({ 200: ['A page of alerts', page(alert)] }),
      },
    },
    async (request) => {
      const { all = false, rule = null, limit, cursor } = request.query
      return cursorOut(LIST, await services.alerts.list({ all, rule }, limit, cursorIn(LIST, cursor)))
    },
  )
}
