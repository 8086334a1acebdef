import type { OutgoingHttpHeaders } from 'node:http'
import type { FastifyInstance } from 'fastify'
import type { Role } from '../../core/limits/roles.ts'
import { createMetrics } from '../../http/metrics/metrics.ts'
import { createApp, type HttpOptions } from '../../http/server/app.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Deps } from '../../services/deps.ts'
import type { Services } from '../../services/index.ts'
import { type Engine, type Opened, testServices } from '../services/services.ts'

export interface Answer {
  status: number
  headers: OutgoingHttpHeaders
  text: string
  body: unknown
}

export interface Call {
  headers?: Record<string, string>
  /** Text and bytes are sent unchanged, everything else as JSON. */
  body?: unknown
  /** The caller's token. Without a token the caller is the local user of open mode. */
  token?: string
}

export interface TestApp {
  app: FastifyInstance
  services: Services
  call(method: string, path: string, call?: Call): Promise<Answer>
  /** Creates a token of this user. From the first token on, every caller needs one. */
  token(userId: string, role: Role): Promise<string>
  close(): Promise<void>
}

type Changes = Partial<Omit<HttpOptions, 'services'>> & {
  deps?: Partial<Pick<Deps, 'world' | 'bus' | 'limits' | 'blobs' | 'backups' | 'courier'>>
  /** Replaces a service, to see how HTTP reports its failures. */
  alter?: (services: Services) => Services
  /** An open store, for a second node on it. */
  opened?: Opened
}

/** The HTTP layer with services on its own empty store, in open mode until a token is created. */
export async function testApp(
  engine: Engine,
  { deps = {}, alter, opened, ...changes }: Changes = {},
): Promise<TestApp> {
  const metrics = changes.metrics ?? createMetrics(deps.world ?? realWorld)
  const { services, close } = await testServices(engine, { ...deps, meter: metrics.meter }, opened)
  const app = await createApp({
    services: alter?.(services) ?? services,
    openMode: true,
    mismatchStatus: 409,
    trustProxy: false,
    basePath: '',
    publicUrl: null,
    tls: null,
    logger: false,
    version: '0.0.0-test',
    ...changes,
    metrics,
  })
  return {
    app,
    services,
    call: (method, path, call = {}) => inject(app, method, path, call),
    token: async (userId, role) =>
      (await services.access.createToken(LOCAL_ADMIN, { userId, role, name: '', ttlSeconds: null })).token,
    async close() {
      await app.close()
      await close()
    },
  }
}

async function inject(app: FastifyInstance, method: string, path: string, call: Call): Promise<Answer> {
  const { headers = {}, body, token } = call
  const raw = typeof body === 'string' || Buffer.isBuffer(body)
  const response = await app.inject({
    method: method as 'GET',
    url: path,
    headers: {
      host: 'localhost:8001',
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...headers,
    },
    ...(body === undefined ? {} : { payload: raw ? body : JSON.stringify(body) }),
  })
  const text = response.payload
  return { status: response.statusCode, headers: response.headers, text, body: parse(text) }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}
