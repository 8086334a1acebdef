import { IchidoError, type Page, type QuotaShape, type UserShape } from '@ichido/sdk/protocol'
import { MICROS, type Quota, toMicros } from '../../core/limits/quota.ts'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import { clearQuota, findQuota, listUsers, type QuotaUse, setQuota } from '../../store/limits/quotas.ts'
import { isoOrNull, renderPage, requireAbility } from '../answers.ts'
import type { Deps } from '../deps.ts'

/** The limits of users without own limits. */
const DEFAULT_QUOTA_USER = '*'

export interface QuotaService {
  get(caller: Caller, userId: string): Promise<QuotaShape>
  /** All users who ever had a token or limits, or submitted or reserved, in the order of their ids. */
  listUsers(caller: Caller, limit: number, cursor: string | null): Promise<Page<UserShape>>
  put(caller: Caller, userId: string, limits: QuotaLimits): Promise<QuotaShape>
  /** Back to the default limits. */
  clear(caller: Caller, userId: string): Promise<QuotaShape>
}

interface QuotaLimits {
  max_concurrent: number | null
  cost_limit: number | null
  period: 'day' | 'month'
  max_bytes?: number | null
}

export function createQuotaService({ world, store }: Deps): QuotaService {
  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  async function read(userId: string): Promise<QuotaShape> {
    return renderQuota(await store.read(findQuota(userId)))
  }

  return {
    async get(caller, userId) {
      if (!mayRead(caller, userId)) throw new IchidoError('FORBIDDEN')
      return read(userId)
    },
    async listUsers(caller, limit, cursor) {
      requireAbility(caller, 'readAll')
      return renderPage(await store.read(listUsers(limit, cursor)), (user) => ({
        ...renderQuota(user),
        created_at: isoOrNull(user.createdAtMs),
      }))
    },
    async put(caller, userId, limits) {
      requireAbility(caller, 'administer')
      const quota: Quota = {
        maxConcurrent: limits.max_concurrent,
        costLimitMicros: limits.cost_limit === null ? null : toMicros(limits.cost_limit),
        period: limits.period,
        maxBytes: limits.max_bytes ?? null,
      }
      await store.write(setQuota(userId, quota, by(caller)))
      return read(userId)
    },
    async clear(caller, userId) {
      requireAbility(caller, 'administer')
      if (userId === DEFAULT_QUOTA_USER) {
        const unlimited: Quota = { maxConcurrent: null, costLimitMicros: null, period: 'month' }
        await store.write(setQuota(userId, unlimited, by(caller)))
      } else await store.write(clearQuota(userId, by(caller)))
      return read(userId)
    },
  }
}

function renderQuota(use: QuotaUse): QuotaShape {
  return {
    user_id: use.userId,
    max_concurrent: use.maxConcurrent,
    cost_limit: use.costLimitMicros === null ? null : use.costLimitMicros / MICROS,
    period: use.period,
    custom: use.custom,
    active_jobs: use.activeJobs,
    active_reservations: use.activeReservations,
    spent: use.spentMicros / MICROS,
    max_bytes: use.maxBytes,
    used_bytes: use.usedBytes,
  }
}
