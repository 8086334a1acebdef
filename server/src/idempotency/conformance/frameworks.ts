import { createServer, type Server } from 'node:http'
import { json } from 'node:stream/consumers'
import { createAdaptorServer } from '@hono/node-server'
import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import type { Answer, Call, Idempotency, Route } from '../index.ts'
import type { Order } from './shop.ts'

export interface App<Tx, Returned> {
  once: Idempotency<Tx, Returned>
  /** Shares the keys, but does not wait for a running request. */
  impatient: Idempotency<Tx, Returned>
  handle(call: Call<Tx, Returned>, order: Order): Promise<Answer>
}

/** The routes of the conformance suite. */
const ROUTES = {
  orders: { route: 'POST /orders/{shop}' },
  notes: { route: 'POST /notes', required: false },
  recovered: { route: 'POST /recovered', recover: () => 'run' as const },
}
const IMPATIENT = 'POST /orders/{shop}'

const routeOf = (user: unknown, route: Omit<Route, 'user'>): Route => ({ ...route, user: String(user) })

export function plainNode<Tx, Returned>({ once, impatient, handle }: App<Tx, Returned>): Server {
  return createServer((req, res) => {
    const [, first = ''] = (req.url ?? '').split(/[/?]/)
    const user = req.headers['x-user']
    const guard = first === 'impatient' ? impatient : once
    const route = first === 'notes' ? ROUTES.notes : first === 'recovered' ? ROUTES.recovered : ROUTES.orders
    return guard.node(req, res, routeOf(user, route), async () => {
      const { status, headers, body } = await handle(guard.callOf(req), (await json(req)) as Order)
      const isText = typeof body === 'string'
      res.writeHead(status, { 'content-type': isText ? 'text/plain' : 'application/json', ...headers })
      res.end(isText ? body : JSON.stringify(body))
    })
  })
}

function onExpress<Tx, Returned>({ once, impatient, handle }: App<Tx, Returned>): Server {
  const app = express()
  const guarded =
    (guard: Idempotency<Tx, Returned>, route: Omit<Route, 'user'>) =>
    (req: express.Request, res: express.Response, next: express.NextFunction) =>
      guard.node(req, res, routeOf(req.get('x-user'), route), next)
  const answer = (guard: Idempotency<Tx, Returned>) => async (req: express.Request, res: express.Response) => {
    const { status, headers, body } = await handle(guard.callOf(req), req.body)
    res.status(status).set(headers).send(body)
  }
  app.post('/orders/:shop', guarded(once, ROUTES.orders), express.json(), answer(once))
  app.post('/impatient/:shop', guarded(impatient, { route: IMPATIENT }), express.json(), answer(impatient))
  app.post('/recovered', guarded(once, ROUTES.recovered), express.json(), answer(once))
  // Behind the parser, as in applications that have it for all routes.
  app.post('/notes', express.json(), guarded(once, ROUTES.notes), answer(once))
  // Express recognises an error handler by its four parameters.
  app.use((_error: unknown, _req: express.Request, res: express.Response, _next: express.NextFunction) => {
    res.status(500).send('failed')
  })
  return createServer(app)
}

async function onFastify<Tx, Returned>({ once, impatient, handle }: App<Tx, Returned>): Promise<Server> {
  const app = fastify()
  const add = (path: string, guard: Idempotency<Tx, Returned>, route: Omit<Route, 'user'>) =>
    app.post<{ Body: Order }>(path, {
      onRequest: (request, reply, done) => {
        guard.node(request.raw, reply.raw, routeOf(request.headers['x-user'], route), done)
      },
      handler: async (request, reply) => {
        const { status, headers, body } = await handle(guard.callOf(request.raw), request.body)
        return reply
          .code(status)
          .headers({ ...headers })
          .send(body)
      },
    })
  add('/orders/:shop', once, ROUTES.orders)
  add('/impatient/:shop', impatient, { route: IMPATIENT })
  add('/recovered', once, ROUTES.recovered)
  add('/notes', once, ROUTES.notes)
  await app.ready()
  return app.server
}

function onHono<Tx, Returned>({ once, impatient, handle }: App<Tx, Returned>): Server {
  const app = new Hono()
  const add = (path: string, guard: Idempotency<Tx, Returned>, route: Omit<Route, 'user'>) =>
    app.post(path, (c) =>
      guard.fetch(c.req.raw, routeOf(c.req.header('x-user'), route), async (call) => {
        const { status, headers, body } = await handle(call, await c.req.json())
        const text = typeof body === 'string' ? body : JSON.stringify(body)
        return new Response(text, { status, headers: { 'content-type': 'application/json', ...headers } })
      }),
    )
  add('/orders/:shop', once, ROUTES.orders)
  add('/impatient/:shop', impatient, { route: IMPATIENT })
  add('/recovered', once, ROUTES.recovered)
  add('/notes', once, ROUTES.notes)
  app.onError((_error, c) => c.text('failed', 500))
  return createAdaptorServer({ fetch: app.fetch, createServer }) as Server
}

export type Framework = <Tx, Returned>(app: App<Tx, Returned>) => Server | Promise<Server>

export const FRAMEWORKS: Readonly<Record<string, Framework>> = {
  'plain Node': plainNode,
  Express: onExpress,
  Fastify: onFastify,
  Hono: onHono,
}
