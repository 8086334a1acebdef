import { nameParams, page, pageQuery } from '../../contract/common.ts'
import * as contract from '../../contract/definitions.ts'
import { callerOf } from '../auth/auth.ts'
import { bodyBytesFor } from '../server/body-limits.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

const tags = ['definitions']
const params = nameParams
const { definition, ticks } = contract

export function definitionRoutes(app: ApiInstance, context: RouteContext): void {
  contentRoutes(app, context)
  pauseRoutes(app, context)
  previewRoutes(app, context)
}

function contentRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { definitions } = services
  const bodyLimit = bodyBytesFor(services.deps.limits.payloadBytesMax)

  app.post(
    '/v1/definitions',
    {
      bodyLimit,
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Create a definition',
        description:
          'A definition is a named template of jobs, with or without a schedule. Its jobs belong to the user who creates it.',
        body: contract.createDefinitionRequest,
        response: answers(
          { 201: ['The definition', definition] },
          'DEFINITION_EXISTS',
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { name, ...input } = request.body
      return reply.code(201).send(await definitions.create(callerOf(request), name, input))
    },
  )

  app.get(
    '/v1/definitions',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: 'List definitions, newest first',
        querystring: pageQuery,
        response: answers({ 200: ['A page of definitions', page(definition)] }),
      },
    },
    (request) => listPage('definitions', request.query, (limit, after) => definitions.list(limit, after)),
  )

  app.get(
    '/v1/definitions/:name',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: 'Show a definition',
        params,
        response: answers({ 200: ['The definition', definition] }, 'NOT_FOUND'),
      },
    },
    (request) => definitions.get(request.params.name),
  )

  app.put(
    '/v1/definitions/:name',
    {
      bodyLimit,
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Replace a definition',
        description:
          'Fields that are left out get their default. A pause and the owner of the jobs stay. Earlier ticks keep their ' +
          'jobs, a tick that is already due is still made, and the new rule applies from now on.',
        params,
        body: contract.putDefinitionRequest,
        response: answers(
          { 200: ['The definition', definition] },
          'NOT_FOUND',
          'VERSION_CONFLICT',
          'MAXIMUM_REACHED',
          ...WITH_BODY,
        ),
      },
    },
    (request) => {
      const { version = null, ...input } = request.body
      return definitions.update(callerOf(request), request.params.name, input, version)
    },
  )

  app.delete(
    '/v1/definitions/:name',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Delete a definition',
        description: 'Jobs that it made continue; waiting ticks are skipped.',
        params,
        response: answers({ 204: ['It is deleted'] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => {
      await definitions.remove(callerOf(request), request.params.name)
      return reply.code(204).send()
    },
  )
}

function pauseRoutes(app: ApiInstance, { services }: RouteContext): void {
  for (const [verb, summary] of [
    ['pause', 'Pause a schedule'],
    ['resume', 'Resume a schedule'],
  ] as const) {
    app.post(
      `/v1/definitions/:name/${verb}`,
      {
        config: { ability: 'operate' },
        schema: {
          tags,
          summary,
          description: 'The ticks of a pause are recorded as skipped. Jobs that were already made continue.',
          params,
          response: answers({ 200: ['The definition', definition] }, 'NOT_FOUND'),
        },
      },
      (request) => services.definitions[verb](callerOf(request), request.params.name),
    )
  }
}

function previewRoutes(app: ApiInstance, { services }: RouteContext): void {
  const { definitions } = services

  app.get(
    '/v1/definitions/:name/ticks',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: 'Show the next ticks of a definition',
        description: 'A pause does not change the answer. A definition without a schedule has no ticks.',
        params,
        querystring: contract.ticksQuery,
        response: answers({ 200: ['The next ticks', ticks] }, 'NOT_FOUND'),
      },
    },
    async (request) => ({ data: await definitions.ticks(request.params.name, request.query.limit) }),
  )

  app.post(
    '/v1/definitions/preview',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Show the next ticks of a schedule that is not stored',
        body: contract.previewRequest,
        response: answers({ 200: ['The next ticks', ticks] }, ...WITH_BODY),
      },
    },
    async (request) => {
      const { schedule, limit } = request.body
      return { data: await definitions.preview(contract.toSchedule(schedule), limit) }
    },
  )
}
