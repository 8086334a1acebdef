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
 * For browsers, whose EventSource sends no headers: what stands in a URL ends up in logs and histories, so it opens the
 * events of one job only, and not for long. It is signed with a key that only the API token gives, and checked against the
 * public half that stands beside that token's hash: every node can check it, nobody who reads the database can make one,
 * and it ends with the API token.
 */
export interface StreamTokenService {
  /** @param apiToken what the caller authenticated with; undefined in open mode. */
  create(caller: Caller, jobId: string, apiToken: string | undefined): Promise<StreamTokenShape>
  /** With the rights that the API token has now; null when that has ended, or this is forged, for another job or too old. */
  verify(token: string, jobId: string): Promise<Caller | null>
}

export const STREAM_TOKEN_PREFIX = 'ichido_stream_'
const FORM = /^ichido_stream_([\w-]+)\.([\w-]+)$/
const TTL_MS = 5 * 60_000
const SECRET_BYTES = 32
/** What the API token is hashed with here must never be what it is stored under. */
const PURPOSE = 'ichido stream token'

/** The id of the API token; null: it was asked for in open mode. */
const content = z.tuple([z.uuid(), z.int(), z.uuid().nullable()])

export function createStreamTokenService(
  { world, store }: Pick<Deps, 'world' | 'store'>,
  jobs: JobService,
  access: Pick<AccessService, 'isAuthRequired'>,
): StreamTokenService {
  /** In memory alone: nothing in the store may be worth an admin's streams. So another node does not take it. */
  const openKey = keyFrom(world.secret(SECRET_BYTES))

  /** The public half is stored when it is first needed. */
  async function tokenIdOf(apiToken: string, key: KeyObject): Promise<string> {
    const found = await store.read(findToken(hashToken(apiToken)))
    // It was valid a moment ago.
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

/** Of anybody who sends something that looks like a token: not believed before its signature was checked. */
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

/** Always the same one from the same secret, which has 256 random bits: it cannot be found from the public half. */
function keyFrom(secret: string): KeyObject {
  const seed = createHmac('sha256', secret).update(PURPOSE).digest()
  return createPrivateKey({ key: Buffer.concat([PKCS8, seed]), format: 'der', type: 'pkcs8' })
}

function publicHalf(key: KeyObject): string {
  return String(createPublicKey(key).export({ format: 'jwk' }).x)
}
