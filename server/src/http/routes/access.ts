import { z } from 'zod'
import { auditEntry, createTokenRequest, isUserName, listAuditQuery, newToken, token } from '../../contract/access.ts'
import { page, pageQuery, uuid } from '../../contract/common.ts'
import { user } from '../../contract/limits.ts'
import { callerOf } from '../auth/auth.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

const tags = ['tokens']
const params = z.object({ token_id: uuid })

export function tokenRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.post(
    '/v1/tokens',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'Make an API token',
        description: 'After the first token is made, every request needs a token. This cannot be undone.',
        body: createTokenRequest,
        response: answers({ 201: ['The token', newToken] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { user_id: userId, role, name = '', ttl_seconds: ttlSeconds = null } = request.body
      const made = await services.access.createToken(callerOf(request), { userId, role, name, ttlSeconds })
      return reply.code(201).send(made)
    },
  )

  app.get(
    '/v1/tokens',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'List tokens, without their secrets',
        response: answers({ 200: ['All tokens', page(token)] }),
      },
    },
    async (request) => ({ data: await services.access.listTokens(callerOf(request)), next_cursor: null }),
  )

  app.delete(
    '/v1/tokens/:token_id',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'Revoke a token',
        params,
        response: answers({ 204: ['The token is revoked'] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => {
      await services.access.revokeToken(callerOf(request), request.params.token_id)
      return reply.code(204).send()
    },
  )
}

export function userRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/users',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags: ['quotas'],
        summary: 'List users by id, with their limits and their use',
        description: 'The list has every user who ever had a token or limits, or submitted or reserved.',
        querystring: pageQuery,
        response: answers({ 200: ['A page of users', page(user)] }),
      },
    },
    (request) => {
      const read = (limit: number, after: string | null) => services.quotas.listUsers(callerOf(request), limit, after)
      return listPage('users', request.query, read, isUserName)
    },
  )
}

export function auditRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/audit',
    {
      config: { ability: 'operate', shared: true },
      schema: {
        tags: ['audit'],
        summary: 'List who changed what, newest first',
        querystring: listAuditQuery,
        response: answers({ 200: ['A page of entries', page(auditEntry)] }),
      },
    },
    async (request) => {
      const { actor = null, action = null, subject = null, from = null, to = null } = request.query
      const filter = { actor, action, subject, fromMs: from, toMs: to }
      return listPage('audit', request.query, (limit, after) =>
        services.audit.list(callerOf(request), filter, limit, after),
      )
    },
  )
}
