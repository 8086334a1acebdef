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
