import { IchidoError, type KeyShape, type Page } from '@ichido/sdk/protocol'
import { type Caller, mayChange, visibleUser } from '../../core/limits/roles.ts'
import { extendKeyTo, findKeys, listKeys, type StoredKey } from '../../store/submission/keys.ts'
import { iso, renderPage } from '../answers.ts'
import type { Deps } from '../deps.ts'

export interface KeyService {
  /** All entries of a key: several users may use the same key, and one user may use it for several operations. */
  get(caller: Caller, key: string): Promise<KeyShape[]>
  list(caller: Caller, activeOnly: boolean, limit: number, cursor: string | null): Promise<Page<KeyShape>>
  /** Extends the lifetime of a key to this long from now. A lifetime is never shortened. */
  extend(caller: Caller, key: string, ttlHours: number): Promise<KeyShape[]>
}

export function createKeyService({ store }: Deps): KeyService {
  async function visible(caller: Caller, key: string): Promise<StoredKey[]> {
    const found = await store.read(findKeys(key, visibleUser(caller)))
    if (found.length === 0) throw new IchidoError('NOT_FOUND', `There is no key ${JSON.stringify(key)}`)
    return found
  }

  return {
    get: async (caller, key) => (await visible(caller, key)).map(renderKey),

    async list(caller, activeOnly, limit, cursor) {
      return renderPage(await store.read(listKeys(visibleUser(caller), activeOnly, limit, cursor)), renderKey)
    },

    async extend(caller, key, ttlHours) {
      const mine = (await visible(caller, key)).filter((k) => mayChange(caller, k.userId))
      if (mine.length === 0) throw new IchidoError('FORBIDDEN')
      for (const one of mine) await store.write(extendKeyTo(one, Math.round(ttlHours * 3_600_000)))
      return (await visible(caller, key)).map(renderKey)
    },
  }
}

function renderKey(key: StoredKey): KeyShape {
  return {
    key: key.key,
    user_id: key.userId,
    operation: key.operation,
    job_id: key.jobId,
    request_hash: key.requestHash,
    active: key.active,
    created_at: iso(key.createdAtMs),
    expires_at: iso(key.expiresAtMs),
  }
}
