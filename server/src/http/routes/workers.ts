import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import type { FastifyInstance } from 'fastify'
import { z } from 'zod'
import { page, pageQuery, uuid } from '../../contract/common.ts'
import {
  detached,
  enrollRequest,
  enrollToken,
  registered,
  registerRequest,
  renewed,
  renewRequest,
  revoked,
  worker,
} from '../../contract/workers.ts'
import { callerOf, workerOf } from '../auth/auth.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

const tags = ['workers']
const params = z.object({ worker_id: uuid })
/** The built file in the package. */
const BUILT = new URL('../../agent.mjs', import.meta.url)
/** The bundler, in a clone of the repository. */
const BUNDLER = new URL('../../../../scripts/bundle.mjs', import.meta.url)

export function workerRoutes(app: ApiInstance, context: RouteContext): void {
  registrationRoutes(app, context)
  administrationRoutes(app, context)
  drainRoutes(app, context)
}

function registrationRoutes(app: ApiInstance, { services: { workers }, publicUrl }: RouteContext): void {
  app.post(
    '/v1/workers/enroll-tokens',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Make an enroll token, which registers one worker',
        body: enrollRequest,
        response: answers({ 201: ['The token', enrollToken] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { label, queues, ttl_seconds: ttlSeconds, worker_id: workerId } = request.body
      const made = await workers.enroll(callerOf(request), { label, queues, ttlSeconds, workerId })
      return reply.code(201).send({ ...made, public_url: publicUrl })
    },
  )

  app.post(
    '/v1/workers/register',
    {
      config: { ability: 'public' },
      schema: {
        tags,
        summary: 'Register a worker with an enroll token',
        description:
          'A worker that registers again with its `worker_id` keeps its leases. It proves its identity with its last `worker_token`, which may have expired, or with an enroll token that was made for it.',
        body: registerRequest,
        response: answers({ 201: ['The worker and its token', registered] }, ...WITH_BODY),
      },
    },
    async (request, reply) => {
      const { enroll_token: enrollToken, name, queues, meta, ...before } = request.body
      const { worker_id: workerId, worker_token: workerToken, register_id: registerId } = before
      const registration = { enrollToken, name, queues, meta, workerId, workerToken, registerId }
      const made = await workers.register(registration)
      if (made === null) app.refuseCredentials(request, reply, 'The enroll token is unknown, used, or its time is up')
      return reply.code(201).send(made)
    },
  )

  app.post(
    '/v1/workers/renew',
    {
      config: { ability: 'worker' },
      schema: {
        tags,
        summary: "Renew the worker's token",
        description: 'The old token works until the new one is first used, and then for 10 minutes at most.',
        body: renewRequest,
        response: answers({ 200: ['The new token', renewed] }, ...WITH_BODY),
      },
    },
    (request) => workers.renew(workerOf(request), request.body?.meta),
  )

  app.post(
    '/v1/workers/detach',
    {
      config: { ability: 'worker' },
      schema: {
        tags,
        summary: 'Report that this worker stops',
        description:
          'The worker no longer counts as online, and runs that it did not start go to other workers sooner. Its next call makes it online again. It keeps its leases: end or release them first.',
        response: answers({ 200: ['It is detached', detached] }),
      },
    },
    (request) => workers.detach(workerOf(request)),
  )
}

function administrationRoutes(app: ApiInstance, { services: { workers } }: RouteContext): void {
  app.get(
    '/v1/workers',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'List workers, newest first',
        querystring: pageQuery,
        response: answers({ 200: ['A page of workers', page(worker)] }),
      },
    },
    (request) => listPage('workers', request.query, (limit, after) => workers.list(callerOf(request), limit, after)),
  )

  app.get(
    '/v1/workers/:worker_id',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Show a worker',
        params,
        response: answers({ 200: ['The worker', worker] }, 'NOT_FOUND'),
      },
    },
    (request) => workers.get(callerOf(request), request.params.worker_id),
  )

  app.delete(
    '/v1/workers/:worker_id',
    {
      config: { ability: 'operate' },
      schema: {
        tags,
        summary: 'Revoke a worker, for good',
        description:
          'The same transaction ends its leases. Runs that it did not start go to the next worker at once. Runs that it had started go to another worker after the continuation time, when it has stopped by itself.',
        params,
        response: answers({ 200: ['It is revoked', revoked] }, 'NOT_FOUND'),
      },
    },
    (request) => workers.revoke(callerOf(request), request.params.worker_id),
  )
}

function drainRoutes(app: ApiInstance, { services: { workers } }: RouteContext): void {
  for (const [verb, summary, description] of [
    [
      'drain',
      'Drain a worker',
      'From now on it gets no new runs, until it is resumed, also after a restart. The runs that it holds continue. Draining it again changes nothing.',
    ],
    ['resume', 'Resume a worker that drains', 'It gets runs again. Resuming it again changes nothing.'],
  ] as const) {
    app.post(
      `/v1/workers/:worker_id/${verb}`,
      {
        config: { ability: 'operate' },
        schema: { tags, summary, description, params, response: answers({ 200: ['The worker', worker] }, 'NOT_FOUND') },
      },
      (request) => workers[verb](callerOf(request), request.params.worker_id),
    )
  }
}

interface AgentFile {
  text: string
  etag: string
}

/** The agent as one file, for new worker machines. It is public, because it contains no secret. */
export function agentRoutes(app: FastifyInstance): void {
  let made: Promise<AgentFile> | null = null
  const agentFile = () => {
    made ??= makeAgent().catch((error: unknown) => {
      made = null
      throw error
    })
    return made
  }
  app.get('/agent.mjs', { config: { ability: 'public' }, schema: { hide: true } }, async (request, reply) => {
    const { text, etag } = await agentFile()
    reply.header('cache-control', 'no-cache').header('etag', etag)
    if (request.headers['if-none-match'] === etag) return reply.code(304).send()
    return reply.type('text/javascript; charset=utf-8').send(text)
  })
}

async function makeAgent(): Promise<AgentFile> {
  const text = import.meta.url.endsWith('.ts') ? await bundle() : await readFile(BUILT, 'utf8')
  return { text, etag: `"${createHash('sha256').update(text).digest('base64url')}"` }
}

async function bundle(): Promise<string> {
  const { bundleAgent } = (await import(BUNDLER.href)) as { bundleAgent(): Promise<string> }
  return bundleAgent()
}
