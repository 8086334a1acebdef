import { page } from '../../../contract/common/shapes.ts'
import { definitionParams } from '../../../contract/definitions.ts'
import * as contract from '../../../contract/triggers.ts'
import { callerOf } from '../../auth/auth.ts'
import { BATCH_BODY_BYTES_MAX } from '../../server/bodies.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const tags = ['triggers']
const LIST = 'triggers'
const LEDGER = 'trigger-ledger'

export function triggerRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { triggers } = services

  app.post(
    '/v1/triggers',
    {
      bodyLimit: BATCH_BODY_BYTES_MAX,
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Tell of something that happened, once',
        description:
          'The leader makes a job of each definition whose `on` fits. The same `dedupe_key` again stores nothing and is ' +
          'answered with what the first was, with `duplicate: true` and `Idempotent-Replayed: true`, until retention has ' +
          'removed it. Many in one call are stored together or not at all.',
        body: contract.recordRequest,
        response: answers(
          {
            200: ['Known already, all of them', contract.recordResponse],
            201: ['Recorded', contract.recordResponse],
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
        summary: 'List triggers and what each made, newest first',
        description: 'Without their data. A submitter sees its own.',
        querystring: contract.listTriggersQuery,
        response: answers({ 200: ['A page of triggers', page(contract.triggerShape)] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const { topic = null, definition = null, state = null, limit, cursor } = request.query
      const after = cursorIn(LIST, cursor)
      return cursorOut(LIST, await triggers.list(callerOf(request), { topic, definition, state }, limit, after))
    },
  )

  app.get(
    '/v1/triggers/:trigger_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a trigger, its data and what it made',
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
        summary: 'List what became of the triggers of a definition, newest first',
        description: 'The ledger: a job, a recorded skip with its reason, or what it waits for.',
        params: definitionParams,
        querystring: contract.definitionTriggersQuery,
        response: answers({ 200: ['A page of the ledger', page(contract.triggerEntry)] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const { limit, cursor } = request.query
      return cursorOut(LEDGER, await triggers.ledger(request.params.name, limit, cursorIn(LEDGER, cursor)))
    },
  )
}
