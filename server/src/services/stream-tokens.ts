import { createHmac } from 'node:crypto'
import type { StreamTokenShape } from '@ichido/sdk/protocol'
import type { Caller, Role } from '../core/roles.ts'
import { keepSecret } from '../store/commands/secrets.ts'
import { sameHash } from './access.ts'
import type { Deps } from './deps.ts'
import type { JobService } from './jobs.ts'
import { iso } from './render.ts'

/**
 * For browsers, whose EventSource sends no headers: what stands in a URL ends up in logs and histories, so it opens the
 * events of one job only, and not for long. Signed, not stored: each node can check what another one gave out.
 */
export interface StreamTokenService {
  create(caller: Caller, jobId: string): Promise<StreamTokenShape>
  /** Who it was given to; null when it is forged, for another job, or its time is up. */
  verify(token: string, jobId: string): Promise<Caller | null>
}

export const STREAM_TOKEN_PREFIX = 'ichido_stream_'
const FORM = /^ichido_stream_([\w-]+)\.([\w-]+)$/
const TTL_MS = 5 * 60_000
const SECRET_BYTES = 32
const SECRET_NAME = 'stream_token_secret'

export function createStreamTokenService(
  { world, store }: Pick<Deps, 'world' | 'store'>,
  jobs: JobService,
): StreamTokenService {
  let secret: Promise<string> | null = null

  async function sign(text: string): Promise<string> {
    secret ??= store.write(keepSecret(SECRET_NAME, world.secret(SECRET_BYTES)))
    try {
      return createHmac('sha256', await secret)
        .update(text)
        .digest('base64url')
    } catch (error) {
      secret = null
      throw error
    }
  }

  return {
    async create(caller, jobId) {
      await jobs.get(caller, jobId)
      const expiresMs = world.now() + TTL_MS
      const text = Buffer.from(JSON.stringify([jobId, expiresMs, caller.role, caller.userId])).toString('base64url')
      return { token: `${STREAM_TOKEN_PREFIX}${text}.${await sign(text)}`, expires_at: iso(expiresMs) }
    },

    async verify(token, jobId) {
      const [, text, signature] = FORM.exec(token) ?? []
      if (text === undefined || signature === undefined || !sameHash(signature, await sign(text))) return null
      // Signed by us: it has the shape that `create` gave it.
      const [forJob, expiresMs, role, userId] = JSON.parse(Buffer.from(text, 'base64url').toString()) as Content
      return forJob === jobId && expiresMs > world.now() ? { userId, role } : null
    },
  }
}

type Content = [jobId: string, expiresMs: number, role: Role, userId: string]
