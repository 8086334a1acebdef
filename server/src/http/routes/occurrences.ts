import { nameParams, page, pageQuery } from '../../contract/common.ts'
import * as contract from '../../contract/definitions.ts'
import { submitResponse } from '../../contract/submit.ts'
import { refusalError } from '../../services/submission/submit-job.ts'
import { callerOf } from '../auth/auth.ts'
import { JSON_TYPE } from '../server/errors.ts'
import { answers, errorAnswer, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'
import { keyOf } from './submit.ts'

const tags = ['definitions']
const params = nameParams

export function occurrenceRoutes(app: ApiInstance, context: RouteContext): void {
  ledgerRoute(app, context)
  runRoute(app, context)
  backfillRoutes(app, context)
}

function ledgerRoute(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/definitions/:name/occurrences',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: "List the ledger of a definition's ticks, newest first",
        description:
          'The list also has the ticks since the last change of the definition that have no entry: `missing` ticks show ' +
          'that the schedule has stopped.',
        params,
        querystring: contract.occurrencesQuery,
        response: answers({ 200: ['A page of ticks', page(contract.occurrence)] }, 'NOT_FOUND'),
      },
    },
    async (request) => {
      const { from = null, to = null } = request.query
      const read = async (limit: number, before: string | null) => {
        const [range, beforeMs] = [{ fromMs: from, toMs: to }, before === null ? null : Number(before)]
        const { data, nextMs } = await services.occurrences.ledger(request.params.name, range, limit, beforeMs)
        return { data, next_cursor: nextMs === null ? null : String(nextMs) }
      }
      return listPage('occurrences', request.query, read, contract.isInstant)
    },
  )
}

function runRoute(app: ApiInstance, { services, mismatchStatus }: RouteContext): void {
  const conflicts = ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED'] as const
  app.post(
    '/v1/definitions/:name/run',
    {
      config: { ability: 'operate', takesKey: true },
      schema: {
        tags,
        summary: 'Make a job from a definition now',
        description:
          'The schedule and a pause do not matter. The job is not a tick: its `scheduled_for` is null. With a key, the ' +
          'same request makes only one job. The call has no body: the definition describes the job.',
        params,
        body: contract.runRequest,
        response: {
          ...answers({ 201: ['The job was accepted', submitResponse] }, 'NOT_FOUND', ...WITH_BODY, ...conflicts),
          [mismatchStatus]: errorAnswer('IDEMPOTENCY_KEY_REUSED', ...(mismatchStatus === 409 ? conflicts : [])),
        },
      },
    },
    async (request, reply) => {
      const { name } = request.params
      const outcome = await services.occurrences.run(callerOf(request), name, keyOf(request.raw, {}))
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      if (outcome.kind === 'replayed') reply.header('idempotent-replayed', 'true')
      return reply.code(outcome.status).header('content-type', JSON_TYPE).send(outcome.body)
    },
  )
}

function backfillRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { backfills } = services

  app.post(
    '/v1/definitions/:name/backfill',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Make the ticks of a past range',
        description:
          'Each tick of the current rule makes one job, unless the ledger already has the tick. A later change of the ' +
          'rule does not affect the backfill. It waits while the quota is full. If jobs must not overlap, it makes one ' +
          `at a time. It covers at most ${contract.BACKFILL_TICKS_MAX} ticks.`,
        params,
        body: contract.backfillRequest,
        response: answers(
          { 200: ['With `dry_run`: the counts', contract.backfillDryRun], 202: ['The backfill', contract.backfill] },
          'NOT_FOUND',
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { from, to = null, dry_run } = request.body
      const [{ name }, range] = [request.params, { fromMs: from, toMs: to }]
      if (dry_run) return { dry_run: true as const, ...(await backfills.count(name, range)) }
      return reply.code(202).send(await backfills.begin(callerOf(request), name, range))
    },
  )

  app.get(
    '/v1/definitions/:name/backfills',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'List the backfills of a definition, newest first',
        params,
        querystring: pageQuery,
        response: answers({ 200: ['A page of backfills', page(contract.backfill)] }, 'NOT_FOUND'),
      },
    },
    (request) =>
      listPage('backfills', request.query, (limit, after) => backfills.list(request.params.name, limit, after)),
  )

  app.get(
    '/v1/definitions/:name/backfills/:backfill_id',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Show the progress of a backfill',
        params: contract.backfillParams,
        response: answers({ 200: ['The backfill', contract.backfill] }, 'NOT_FOUND'),
      },
    },
    (request) => backfills.get(request.params.name, request.params.backfill_id),
  )

  app.post(
    '/v1/definitions/:name/backfills/:backfill_id/abort',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Abort a backfill',
        description: 'Jobs that it has made stay.',
        params: contract.backfillParams,
        response: answers({ 200: ['The backfill', contract.backfill] }, 'NOT_FOUND', 'ALREADY_ENDED'),
      },
    },
    (request) => backfills.abort(callerOf(request), request.params.name, request.params.backfill_id),
  )
}
