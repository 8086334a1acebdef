import Fastify, { type FastifyInstance } from 'fastify'
import type { Services } from '../services/index.ts'
import { installAuth } from './auth.ts'
import { installErrors, type MismatchStatus } from './errors.ts'

export interface HttpOptions {
  services: Services
  /** True only when the server listens on a loopback address: then no token is needed until the first one was made. */
  openMode: boolean
  mismatchStatus: MismatchStatus
}

export async function createApp({ services, openMode, mismatchStatus }: HttpOptions): Promise<FastifyInstance> {
  const app = Fastify({ logger: false })
  installErrors(app, mismatchStatus)
  installAuth(app, { services, openMode })
  return app
}
