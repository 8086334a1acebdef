import { z } from 'zod'
import { page, pageQuery, uuid } from '../../contract/common.ts'
import * as contract from '../../contract/dead-letters.ts'
import { jobDetail } from '../../contract/jobs.ts'
import type { DeadFilter } from '../../services/dead-letters/dead-letters.ts'
import { callerOf } from '../auth/auth.ts'
import { bodyBytesFor } from '../server/body-limits.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, jobParams, listPage, type RouteContext } from './context.ts'
import { keyOf } from './submit.ts'

const tags = ['dead letters']
const params = z.object({ redrive_id: uuid })

export function deadLetterRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { deadLetters } = services

  app.get(
    '/v1/dead-letters',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'List dead letters, newest first',
        querystring: contract.listDeadLettersQuery,
        response: answers({ 200: ['A page of dead letters', page(contract.deadLetter)] }),
      },
    },
    async (request) => {
      const { limit: _, cursor, ...filter } = request.query
      const read = (limit: number, after: string | null) =>
        deadLetters.list(callerOf(request), deadFilterOf(filter), limit, after)
      return listPage('dead', request.query, read, contract.isDeadPlace)
    },
  )

  app.get(
    '/v1/dead-letters/groups',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Group dead letters by queue, kind and error code',
        querystring: contract.groupsQuery,
        response: answers({ 200: ['Up to 200 groups, the largest first', contract.groups] }),
      },
    },
    (request) => deadLetters.groups(callerOf(request), deadFilterOf(request.query)),
  )

  app.get(
    '/v1/dead-letters/:job_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a dead letter with its job and runs',
        params: jobParams,
        response: answers({ 200: ['The dead letter', contract.deadLetterDetail] }, 'NOT_FOUND'),
      },
    },
    (request) => deadLetters.get(callerOf(request), request.params.job_id),
  )

  app.post(
    '/v1/jobs/:job_id/retry',
    {
      bodyLimit: bodyBytesFor(services.deps.limits.payloadBytesMax),
      config: { ability: 'submit', takesKey: true },
      schema: {
        tags: ['jobs'],
        summary: 'Retry a job that ended without success',
        description:
          'The same job gets another run, due now, and a full retry budget. With `payload`, a new job is submitted in ' +
          'its place (`replaces_job_id`), which may have an `Idempotency-Key`.',
        params: jobParams,
        body: contract.retryRequest,
        response: answers(
          { 200: ['The job', jobDetail], 201: ['The new job in its place', jobDetail] },
          'NOT_FOUND',
          'NOT_ENDED',
          'ALREADY_ENDED',
          'ALREADY_REPLACED',
          'KEY_TAKEN',
          'IDEMPOTENCY_KEY_REUSED',
          'QUOTA_EXCEEDED',
          'COST_LIMIT_EXCEEDED',
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { job_id } = request.params
      // `null` is a payload, too.
      if (!('payload' in request.body)) return deadLetters.retry(callerOf(request), job_id)
      const key = keyOf(request.raw, {})
      const { job, replayed } = await deadLetters.replace(callerOf(request), job_id, request.body.payload, key)
      if (replayed) reply.header('idempotent-replayed', 'true')
      return reply.code(201).send(job)
    },
  )
}

export function redriveRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { redrives } = services

  app.post(
    '/v1/dead-letters/redrive',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Retry one, several or all matching dead letters',
        description:
          'Each job gets another run and a full retry budget. Jobs that find the quota full wait and are tried again. ' +
          'Dead letters that come after the redrive began are not part of it. Use its id to read its progress or abort it.',
        body: contract.redriveRequest,
        response: answers(
          { 200: ['With `dry_run`: the counts', contract.dryRun], 202: ['The redrive', contract.redrive] },
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { job_ids, filter, dry_run, per_second } = request.body
      const choice = { jobIds: job_ids ?? null, filter: deadFilterOf(filter ?? {}) }
      const caller = callerOf(request)
      if (dry_run) return { dry_run: true, matched: await redrives.count(caller, choice) }
      return reply.code(202).send(await redrives.begin(caller, choice, per_second ?? null))
    },
  )

  app.get(
    '/v1/dead-letters/redrives',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'List redrives, newest first',
        querystring: pageQuery,
        response: answers({ 200: ['A page of redrives', page(contract.redrive)] }),
      },
    },
    (request) => listPage('redrives', request.query, (limit, after) => redrives.list(callerOf(request), limit, after)),
  )

  app.get(
    '/v1/dead-letters/redrives/:redrive_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show the progress of a redrive',
        params,
        response: answers({ 200: ['The redrive', contract.redrive] }, 'NOT_FOUND'),
      },
    },
    (request) => redrives.get(callerOf(request), request.params.redrive_id),
  )

  app.post(
    '/v1/dead-letters/redrives/:redrive_id/abort',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Abort a redrive',
        description: 'Jobs that were already redriven stay so. All others stay dead letters.',
        params,
        response: answers({ 200: ['The redrive', contract.redrive] }, 'NOT_FOUND', 'ALREADY_ENDED'),
      },
    },
    (request) => redrives.abort(callerOf(request), request.params.redrive_id),
  )
}

export function deadFilterOf(input: contract.DeadFilterInput): DeadFilter {
  return {
    queue: input.queue ?? null,
    kind: input.kind ?? null,
    errorCode: input.error_code ?? null,
    userId: input.user_id ?? null,
    deadFromMs: input.dead_after ?? null,
    deadToMs: input.dead_before ?? null,
    text: input.text ?? null,
  }
}
