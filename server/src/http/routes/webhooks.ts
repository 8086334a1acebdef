import { page, pageQuery } from '../../contract/common.ts'
import {
  callbackSecret,
  callbackSecretQuery,
  delivery,
  listDeliveriesQuery,
  redrivenDeliveries,
} from '../../contract/deliveries.ts'
import * as contract from '../../contract/webhooks.ts'
import { callerOf } from '../auth/auth.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, jobParams, listPage, type RouteContext } from './context.ts'

/** Outgoing webhooks. Incoming ones are hooks (routes/triggers.ts). */
export function webhookRoutes(app: ApiInstance, { services: { webhooks } }: RouteContext): void {
  const [tags, params] = [['webhooks'], contract.webhookParams]

  app.post(
    '/v1/webhooks',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Create a webhook, a URL that receives signed messages about ends of jobs and about alerts',
        description:
          'It gets a message for each job that ends after this answer. The secret is shown only in this answer. Messages are ' +
          'signed by Standard Webhooks.',
        body: contract.createWebhookRequest,
        response: answers({ 201: ['The webhook', contract.webhookWithSecret] }, 'MAXIMUM_REACHED', ...WITH_BODY),
      },
    },
    async (request, reply) => reply.code(201).send(await webhooks.create(callerOf(request), given(request.body))),
  )

  app.get(
    '/v1/webhooks',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'List webhooks, oldest first, without their secrets',
        querystring: pageQuery,
        response: answers({ 200: ['A page of webhooks', page(contract.webhook)] }),
      },
    },
    (request) => listPage('webhooks', request.query, webhooks.list),
  )

  app.get(
    '/v1/webhooks/:webhook_id',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Show a webhook',
        params,
        response: answers({ 200: ['The webhook', contract.webhook] }, 'NOT_FOUND'),
      },
    },
    (request) => webhooks.get(request.params.webhook_id),
  )

  app.patch(
    '/v1/webhooks/:webhook_id',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Change a webhook; fields that are left out stay',
        description: 'A webhook that is enabled again gets a message for each job that ends from then on.',
        params,
        body: contract.changeWebhookRequest,
        response: answers({ 200: ['The webhook', contract.webhook] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    (request) => webhooks.change(callerOf(request), request.params.webhook_id, given(request.body)),
  )

  app.delete(
    '/v1/webhooks/:webhook_id',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Delete a webhook and its deliveries',
        params,
        response: answers({ 204: ['It is deleted'] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => {
      await webhooks.remove(callerOf(request), request.params.webhook_id)
      return reply.code(204).send()
    },
  )

  app.post(
    '/v1/webhooks/:webhook_id/rotate-secret',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Give a webhook a new secret',
        description: 'For 24 hours, messages are signed with both secrets. The secret is shown only in this answer.',
        params,
        body: contract.rotateSecretRequest.optional(),
        response: answers(
          { 200: ['The webhook with its new secret', contract.webhookWithSecret] },
          'NOT_FOUND',
          ...WITH_BODY,
        ),
      },
    },
    (request) => webhooks.rotate(callerOf(request), request.params.webhook_id, request.body?.secret),
  )

  app.post(
    '/v1/webhooks/:webhook_id/test',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Send a message of the type webhook.test',
        params,
        response: answers({ 202: ['The delivery', delivery] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    async (request, reply) => reply.code(202).send(await webhooks.test(request.params.webhook_id)),
  )

  app.get(
    '/v1/webhooks/:webhook_id/deliveries',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'List the deliveries of a webhook, newest first',
        params,
        querystring: listDeliveriesQuery,
        response: answers({ 200: ['A page of deliveries', page(delivery)] }, 'NOT_FOUND'),
      },
    },
    (request) => {
      const { state = null } = request.query
      return listPage('deliveries', request.query, (limit, after) =>
        webhooks.deliveries(request.params.webhook_id, state, limit, after),
      )
    },
  )

  app.post(
    '/v1/webhooks/:webhook_id/deliveries/:delivery_id/redrive',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Send a delivery again, with the same id',
        params: contract.deliveryParams,
        response: answers({ 202: ['The delivery', delivery] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { webhook_id, delivery_id } = request.params
      return reply.code(202).send(await webhooks.redrive(callerOf(request), webhook_id, delivery_id))
    },
  )

  app.post(
    '/v1/webhooks/:webhook_id/redrive',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Send all dead deliveries of a webhook again, with their ids',
        params,
        response: answers({ 202: ['How many will be sent again', redrivenDeliveries] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    async (request, reply) =>
      reply.code(202).send(await webhooks.redriveDead(callerOf(request), request.params.webhook_id)),
  )
}

/** Callbacks of single jobs. A job shows its own (routes/jobs.ts). */
export function callbackRoutes(app: ApiInstance, { services: { callbacks } }: RouteContext): void {
  const tags = ['webhooks']

  app.get(
    '/v1/callbacks',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'List the deliveries of callbacks, newest first',
        querystring: listDeliveriesQuery,
        response: answers({ 200: ['A page of deliveries', page(delivery)] }),
      },
    },
    (request) => {
      const { state = null } = request.query
      return listPage('callbacks', request.query, (limit, after) => callbacks.list(state, limit, after))
    },
  )

  app.post(
    '/v1/callbacks/redrive',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Send all dead deliveries of callbacks again, with their ids',
        response: answers({ 202: ['How many will be sent again', redrivenDeliveries] }, ...WITH_BODY),
      },
    },
    async (request, reply) => reply.code(202).send(await callbacks.redriveDead(callerOf(request))),
  )

  app.post(
    '/v1/jobs/:job_id/callback/redrive',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Send the latest message about a job to its callback again, with the same id',
        params: jobParams,
        response: answers({ 202: ['The delivery', delivery] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    async (request, reply) => reply.code(202).send(await callbacks.redrive(callerOf(request), request.params.job_id)),
  )

  app.get(
    '/v1/callbacks/secret',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Show the secret that signs messages to the callbacks of a user’s jobs',
        querystring: callbackSecretQuery,
        response: answers({ 200: ['The secret', callbackSecret] }),
      },
    },
    (request) => {
      const caller = callerOf(request)
      return callbacks.secret(caller, request.query.user_id ?? caller.userId)
    },
  )

  app.post(
    '/v1/callbacks/rotate-secret',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Give a user a new secret for callbacks',
        description: 'For 24 hours, messages are signed with both secrets.',
        querystring: callbackSecretQuery,
        response: answers({ 200: ['The secret', callbackSecret] }, ...WITH_BODY),
      },
    },
    (request) => {
      const caller = callerOf(request)
      return callbacks.rotate(caller, request.query.user_id ?? caller.userId)
    },
  )
}

type Given<T> = { [Name in keyof T]: Exclude<T[Name], undefined> }

/** The fields of a body that are there: an absent field is not the same as one that is undefined. */
function given<T extends object>(body: T): Given<T> {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined)) as Given<T>
}
