import { IchidoError, TRIGGER_DATA_BYTES_MAX } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { page } from '../../../contract/common/shapes.ts'
import { hook, hookParams, listHooksQuery, putHookRequest, putHookResponse } from '../../../contract/hooks.ts'
import { recordedTrigger } from '../../../contract/triggers.ts'
import { callerOf } from '../../auth/auth.ts'
import { parseBody } from '../../server/bodies.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const tags = ['hooks']
const LIST = 'hooks'
const params = hookParams

/** Hooks as operators see them. */
export function hookRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { hooks } = services

  app.put(
    '/v1/hooks/:name',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Create or change a hook, a URL that turns signed webhooks into triggers',
        description:
          'A change keeps the owner of the triggers. A secret that the server makes is shown only in this answer.',
        params,
        body: putHookRequest,
        response: answers({ 200: ['The hook', putHookResponse] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    (request) => hooks.put(callerOf(request), request.params.name, request.body),
  )

  app.get(
    '/v1/hooks',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'List hooks by name, without their secrets',
        querystring: listHooksQuery,
        response: answers({ 200: ['A page of hooks', page(hook)] }),
      },
    },
    async (request) => {
      const { limit, cursor } = request.query
      return cursorOut(LIST, await hooks.list(limit, cursorIn(LIST, cursor, isName)))
    },
  )

  app.get(
    '/v1/hooks/:name',
    {
      config: { ability: 'readAll' },
      schema: { tags, summary: 'Show a hook', params, response: answers({ 200: ['The hook', hook] }, 'NOT_FOUND') },
    },
    (request) => hooks.get(request.params.name),
  )

  app.delete(
    '/v1/hooks/:name',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Delete a hook',
        description: 'Its triggers stay. Later deliveries are refused.',
        params,
        response: answers({ 204: ['It is deleted'] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => {
      await hooks.remove(callerOf(request), request.params.name)
      return reply.code(204).send()
    },
  )
}

const isName = (text: string) => params.shape.name.safeParse(text).success

/** Where webhooks arrive. A scope of its own, for the signature is that of the bytes and not of the JSON in them. */
export async function deliveryRoutes(scope: FastifyInstance, { services }: RouteContext): Promise<void> {
  scope.removeContentTypeParser('application/json')
  scope.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
  const app = scope.withTypeProvider<ZodTypeProvider>()

  app.post(
    '/v1/hooks/:name',
    {
      config: { ability: 'public' },
      bodyLimit: TRIGGER_DATA_BYTES_MAX,
      schema: {
        tags,
        summary: 'Deliver a webhook, which becomes one trigger',
        description:
          'The sender signs the request by the scheme of the hook. The JSON body is the data of the trigger. The id of the ' +
          'delivery is the dedupe key: a repeated delivery gets the first trigger and makes nothing.',
        params,
        body: z.unknown().meta({ description: 'Any JSON' }),
        response: answers(
          { 200: ['The trigger was already stored', recordedTrigger], 201: ['The trigger', recordedTrigger] },
          'NOT_FOUND',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { body, headers } = request
      if (!Buffer.isBuffer(body)) throw new IchidoError('INVALID_PAYLOAD', 'Send a JSON body', { field: 'body' })
      const checked = await services.hooks.check(request.params.name, { headers, body })
      if (checked.kind === 'refused') return app.refuseCredentials(request, reply, checked.problem)
      const { sender, topic, dedupeKey } = checked
      const trigger = { topic, dedupe_key: dedupeKey, data: parseBody(body) }
      const [recorded] = await services.triggers.record(sender, [trigger], () => 'body')
      return reply.code(recorded?.duplicate ? 200 : 201).send(recorded)
    },
  )
}
