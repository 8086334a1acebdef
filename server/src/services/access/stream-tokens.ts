import { createHmac, createPrivateKey, createPublicKey, type KeyObject, sign, verify } from 'node:crypto'
import { IchidoError, type StreamTokenShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import type { Caller } from '../../core/limits/roles.ts'
import { findStreamKey, findToken, keepStreamKey } from '../../store/access/access.ts'
import { iso } from '../answers.ts'
import type { Deps } from '../deps.ts'
import type { JobService } from '../jobs/jobs.ts'
import { type AccessService, hashToken, LOCAL_ADMIN } from './access.ts'

/**
 * Tokens for browsers, whose EventSource sends no headers. URLs end up in logs and histories, so a token opens the
 * events of one job for a short time. It is signed with a key that is derived from the API token, and checked with the
 * public half, which is stored beside the hash of the API token. So every node can check a token, nobody can make one
 * from the database, and it ends with the API token.
 */
export interface StreamTokenService {
  /** @param apiToken what the caller authenticated with; undefined in open mode. */
  create(caller: Caller, jobId: string, apiToken: string | undefined): Promise<StreamTokenShape>
  /**
   * The caller with the current rights of the API token; null if that token has ended, or if this one is forged,
   * expired or for another job.
   */
  verify(token: string, jobId: string): Promise<Caller | null>
}

export const STREAM_TOKEN_PREFIX = 'ichido_stream_'
const FORM = /^ichido_stream_([\w-]+)\.([\w-]+)$/
const TTL_MS = 5 * 60_000
const SECRET_BYTES = 32
/** The API token is stored under another hash than the one with this text. */
const PURPOSE = 'ichido stream token'

/** The job, the expiry, and the id of the API token; null: it was made in open mode. */
const content = z.tuple([z.uuid(), z.int(), z.uuid().nullable()])

export function createStreamTokenService(
  { world, store }: Pick<Deps, 'world' | 'store'>,
  jobs: JobService,
  access: Pick<AccessService, 'isAuthRequired'>,
): StreamTokenService {
  /**
   * The key of open mode is only in memory, so that the store contains nothing that opens an admin's streams. Another
   * node does not accept its tokens.
   */
  const openKey = keyFrom(world.secret(SECRET_BYTES))

  /** The public half is stored when it is first needed. */
  async function tokenIdOf(apiToken: string, key: KeyObject): Promise<string> {
    const found = await store.read(findToken(hashToken(apiToken)))
    // The token was valid a moment ago, and has been revoked since.
    if (found === null) throw new IchidoError('UNAUTHENTICATED')
    if (found.streamKey === null) await store.write(keepStreamKey(found.tokenId, publicHalf(key)))
    return found.tokenId
  }

  async function signer(tokenId: string | null): Promise<{ key: KeyObject; caller: Caller } | null> {
    if (tokenId === null) {
      return (await access.isAuthRequired()) ? null : { key: createPublicKey(openKey), caller: LOCAL_ADMIN }
    }
    const found = await store.read(findStreamKey(tokenId))
    if (found === null) return null
    const { streamKey, userId, role } = found
    return { key: createPublicKey({ key: { ...CURVE, x: streamKey }, format: 'jwk' }), caller: { userId, role } }
  }

  return {
    async create(caller, jobId, apiToken) {
      await jobs.get(caller, jobId)
      const key = apiToken === undefined ? openKey : keyFrom(apiToken)
      const tokenId = apiToken === undefined ? null : await tokenIdOf(apiToken, key)
      const expiresMs = world.now() + TTL_MS
      const text = Buffer.from(JSON.stringify([jobId, expiresMs, tokenId] satisfies Content)).toString('base64url')
      const signature = sign(null, Buffer.from(text), key).toString('base64url')
      return { token: `${STREAM_TOKEN_PREFIX}${text}.${signature}`, expires_at: iso(expiresMs) }
    },

    async verify(token, jobId) {
      const [, text = '', signature = ''] = FORM.exec(token) ?? []
      const [forJob, expiresMs, tokenId] = contentOf(text) ?? []
      if (forJob !== jobId || expiresMs === undefined || tokenId === undefined || expiresMs <= world.now()) return null
      const by = await signer(tokenId)
      if (by === null) return null
      return verify(null, Buffer.from(text), by.key, Buffer.from(signature, 'base64url')) ? by.caller : null
    },
  }
}

type Content = z.output<typeof content>

/** The content of a possible token. Its signature is not checked yet. */
function contentOf(text: string): Content | null {
  try {
    return content.parse(JSON.parse(Buffer.from(text, 'base64url').toString()))
  } catch {
    return null
  }
}

const CURVE = { kty: 'OKP', crv: 'Ed25519' }
/** PKCS #8 of an Ed25519 key, up to its 32 bytes (RFC 8410). */
const PKCS8 = Buffer.from('302e020100300506032b657004220420', 'hex')

/** The same secret gives the same key. The secret has 256 random bits, so the public half does not reveal it. */
function keyFrom(secret: string): KeyObject {
  const seed = createHmac('sha256', secret).update(PURPOSE).digest()
  return createPrivateKey({ key: Buffer.concat([PKCS8, seed]), format: 'der', type: 'pkcs8' })
}

function publicHalf(key: KeyObject): string {
  return String(createPublicKey(key).export({ format: 'jwk' }).x)
}
