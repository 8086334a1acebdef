import { IchidoError, TRIGGER_DATA_BYTES_MAX } from '@ichido/sdk/protocol'
import type { FastifyInstance } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { isName, nameParams, page, pageQuery } from '../../contract/common.ts'
import * as contract from '../../contract/triggers.ts'
import { callerOf } from '../auth/auth.ts'
import { parseBody } from '../server/bodies.ts'
import { BATCH_BODY_BYTES_MAX } from '../server/body-limits.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

const hookTags = ['hooks']

export function triggerRoutes(app: ApiInstance, { services: { triggers } }: RouteContext): void {
  const tags = ['triggers']

  app.post(
    '/v1/triggers',
    {
      bodyLimit: BATCH_BODY_BYTES_MAX,
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Send triggers',
        description:
          'A trigger says that something happened. The leader makes a job from each definition whose `on` matches. A known ' +
          '`dedupe_key` stores nothing: the answer has the first trigger, `duplicate: true` and `Idempotent-Replayed: true`, ' +
          'until retention has removed that trigger. One call stores all of its triggers or none.',
        body: contract.recordRequest,
        response: answers(
          {
            200: ['All of them were already stored', contract.recordResponse],
            201: ['At least one of them is new', contract.recordResponse],
          },
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { triggers: many, ...one } = request.body
      const items = many ?? [contract.triggerRequest.parse(one)]
      const fieldOf = many === undefined ? (_: number, field: string) => field : undefined
      const recorded = await triggers.record(callerOf(request), items, fieldOf)
      const known = recorded.every(({ duplicate }) => duplicate)
      if (known) reply.header('idempotent-replayed', 'true')
      return reply.code(known ? 200 : 201).send(many === undefined ? recorded[0] : { data: recorded })
    },
  )

  app.get(
    '/v1/triggers',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'List triggers and their outcomes, newest first',
        description: 'The list does not have their data. Submitters see only their own triggers.',
        querystring: contract.listTriggersQuery,
        response: answers({ 200: ['A page of triggers', page(contract.triggerShape)] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const { topic = null, definition = null, state = null } = request.query
      return listPage('triggers', request.query, (limit, after) =>
        triggers.list(callerOf(request), { topic, definition, state }, limit, after),
      )
    },
  )

  app.get(
    '/v1/triggers/:trigger_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a trigger, its data and its outcomes',
        params: contract.triggerParams,
        response: answers({ 200: ['The trigger', contract.triggerDetail] }, 'NOT_FOUND'),
      },
    },
    (request) => triggers.get(callerOf(request), request.params.trigger_id),
  )

  app.get(
    '/v1/definitions/:name/triggers',
    {
      config: { ability: 'readAll' },
      schema: {
        tags: ['definitions'],
        summary: "List the ledger of a definition's triggers, newest first",
        description: 'Each entry is a job, a skip with its reason, or a wait.',
        params: nameParams,
        querystring: pageQuery,
        response: answers({ 200: ['A page of the ledger', page(contract.triggerEntry)] }, 'NOT_FOUND'),
      },
    },
    (request) =>
      listPage('trigger-ledger', request.query, (limit, after) => triggers.ledger(request.params.name, limit, after)),
  )
}

/** The routes with which operators manage hooks. */
export function hookRoutes(app: ApiInstance, { services: { hooks } }: RouteContext): void {
  const [tags, params] = [hookTags, nameParams]

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
        body: contract.putHookRequest,
        response: answers({ 200: ['The hook', contract.putHookResponse] }, 'NOT_FOUND', ...WITH_BODY),
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
        querystring: pageQuery,
        response: answers({ 200: ['A page of hooks', page(contract.hook)] }),
      },
    },
    (request) => listPage('hooks', request.query, hooks.list, isName),
  )

  app.get(
    '/v1/hooks/:name',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Show a hook',
        params,
        response: answers({ 200: ['The hook', contract.hook] }, 'NOT_FOUND'),
      },
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

/** The route for webhooks. It has its own scope, because the signature covers the bytes of the body, not its JSON. */
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
        tags: hookTags,
        summary: 'Deliver a webhook, which becomes one trigger',
        description:
          'The sender signs the request by the scheme of the hook. The JSON body is the data of the trigger. The id of the ' +
          'delivery is the dedupe key: a repeated delivery gets the first trigger and makes nothing.',
        params: nameParams,
        body: z.unknown().meta({ description: 'Any JSON' }),
        response: answers(
          {
            200: ['The trigger was already stored', contract.recordedTrigger],
            201: ['The trigger', contract.recordedTrigger],
          },
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
