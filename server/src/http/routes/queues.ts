import { isName, nameParams, page, pageQuery } from '../../contract/common.ts'
import { putQueueRequest, queue } from '../../contract/queues.ts'
import { callerOf } from '../auth/auth.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

export function queueRoutes(app: ApiInstance, { services }: RouteContext): void {
  const tags = ['queues']
  const params = nameParams

  app.get(
    '/v1/queues',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: 'List the queues that have work or settings',
        querystring: pageQuery,
        response: answers({ 200: ['A page of queues, by name', page(queue)] }),
      },
    },
    (request) => listPage('queues', request.query, services.queues.list, isName),
  )

  app.get(
    '/v1/queues/:name',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: 'Show a queue: its settings and how much work it has',
        params,
        response: answers({ 200: ['The queue; an unused queue is empty', queue] }, 'NOT_FOUND'),
      },
    },
    (request) => services.queues.get(request.params.name),
  )

  app.put(
    '/v1/queues/:name',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Change the settings of a queue; fields that are left out stay',
        params,
        body: putQueueRequest,
        response: answers({ 200: ['The queue', queue] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    (request) => {
      const { paused, max_concurrent, lease_ttl_seconds, continuation_seconds, result_ttl_seconds, fatal_error_codes } =
        request.body
      return services.queues.put(callerOf(request), request.params.name, {
        ...(paused === undefined ? {} : { paused }),
        ...(max_concurrent === undefined ? {} : { maxConcurrent: max_concurrent }),
        ...(lease_ttl_seconds === undefined ? {} : { leaseTtlSeconds: lease_ttl_seconds }),
        ...(continuation_seconds === undefined ? {} : { continuationSeconds: continuation_seconds }),
        ...(result_ttl_seconds === undefined ? {} : { resultTtlSeconds: result_ttl_seconds }),
        ...(fatal_error_codes === undefined ? {} : { fatalErrorCodes: fatal_error_codes }),
      })
    },
  )
}
