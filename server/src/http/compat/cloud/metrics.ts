import type { QuotaShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { admit, money, quotaMessage, toMicros, WARN_FROM } from '../../../core/limits/quota.ts'
import { callerOf } from '../../auth/auth.ts'
import type { StoreCheck } from '../../metrics/store-check.ts'
import type { ApiInstance, RouteContext } from '../../routes/context.ts'
import { cloudAnswers } from './shapes.ts'

export interface CloudMetricsOptions {
  version: string
  checkStore: StoreCheck
}

const tags = ['compat: cloud']
const PERIODS = { day: 'daily', month: 'monthly' } as const

const costLimit = z
  .object({
    enabled: z.boolean(),
    limit_amount: z.number().nullable(),
    period: z.enum(['daily', 'monthly']),
    action: z.literal('block'),
    current_spend: z.number(),
    percent_used: z.number(),
    is_exceeded: z.boolean(),
    is_warning: z.boolean(),
    message: z.string().nullable(),
  })
  .meta({ id: 'CloudCostLimit' })

const quota = z
  .object({
    user_id: z.string(),
    statuses: z.array(
      z.object({
        quota_type: z.enum(['concurrent_jobs', 'cost_daily', 'cost_monthly']),
        limit: z.number(),
        current: z.number(),
        action: z.literal('block'),
        is_exceeded: z.boolean(),
        is_warning: z.boolean(),
        percent_used: z.number(),
        message: z.string().nullable(),
        source: z.enum(['user', 'global']),
      }),
    ),
    can_submit: z.boolean().meta({ description: 'Whether a job without `estimated_cost` would be accepted' }),
    blocking_reasons: z.array(z.string()),
  })
  .meta({ id: 'CloudQuota' })

type CloudQuota = z.output<typeof quota>
type LimitStatus = CloudQuota['statuses'][number]

const health = z
  .object({
    status: z.enum(['healthy', 'unhealthy']),
    version: z.string(),
    uptime_seconds: z.number(),
    components: z.array(
      z.object({ name: z.literal('database'), status: z.enum(['healthy', 'unhealthy']), message: z.string() }),
    ),
    timestamp: z.iso.datetime(),
  })
  .meta({ id: 'CloudStatus' })

/** The caller's limits and the health of the server, in the form of SimpleTuner. */
export function cloudMetricRoutes(
  api: ApiInstance,
  { services, version, checkStore }: RouteContext & CloudMetricsOptions,
): void {
  const { quotas, deps } = services
  const { world } = deps
  const beganMs = world.monotonic()

  api.get(
    '/api/cloud/metrics/cost-limit',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: "Show the caller's cost limit and its use",
        response: cloudAnswers({ 200: ['The limit and its use', costLimit] }),
      },
    },
    async (request) => {
      const caller = callerOf(request)
      return renderCostLimit(await quotas.get(caller, caller.userId))
    },
  )

  api.get(
    '/api/cloud/metrics/quota',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show the limits of the caller, and whether the caller can submit',
        response: cloudAnswers({ 200: ['Each limit and its use', quota] }),
      },
    },
    async (request) => {
      const caller = callerOf(request)
      return renderQuota(await quotas.get(caller, caller.userId))
    },
  )

  // The CLI of SimpleTuner calls the second path.
  for (const path of ['/api/cloud/metrics/status', '/api/cloud/health']) {
    api.get(
      path,
      {
        config: { ability: 'readOwn', evenWithoutStore: true },
        schema: {
          tags,
          summary: 'Check the health of the server',
          response: cloudAnswers({ 200: ['The server and its parts', health] }),
        },
      },
      async () => {
        const atStore = await checkStore()
        const status = atStore === 'ok' ? ('healthy' as const) : ('unhealthy' as const)
        const message = atStore === 'ok' ? 'The store answers' : `The store ${atStore}`
        return {
          status,
          version,
          uptime_seconds: Math.round(world.monotonic() - beganMs) / 1000,
          components: [{ name: 'database' as const, status, message }],
          timestamp: new Date(world.now()).toISOString(),
        }
      },
    )
  }
}

interface Use {
  is_exceeded: boolean
  is_warning: boolean
  percent_used: number
}

function useOf(current: number, limit: number): Use {
  const is_exceeded = current >= limit
  const percent_used = limit === 0 ? 100 : Math.round((current / limit) * 1000) / 10
  return { is_exceeded, is_warning: !is_exceeded && current >= limit * WARN_FROM, percent_used }
}

function renderCostLimit({ cost_limit: limit, period, spent }: QuotaShape): z.output<typeof costLimit> {
  const shared = { limit_amount: limit, period: PERIODS[period], action: 'block', current_spend: spent } as const
  if (limit === null) {
    const unused = { is_exceeded: false, is_warning: false, percent_used: 0 }
    return { enabled: false, ...shared, ...unused, message: 'There is no cost limit' }
  }
  const use = useOf(spent, limit)
  return { enabled: true, ...shared, ...use, message: costMessage(use, spent, limit, period) }
}

function costMessage(use: Use, spent: number, limit: number, period: QuotaShape['period']): string | null {
  if (!use.is_exceeded && !use.is_warning) return null
  const [used, most] = [money(toMicros(spent)), money(toMicros(limit))]
  return `${use.is_exceeded ? 'Cost limit exceeded' : 'Cost limit nearly reached'}: ${used} of ${most} per ${period}`
}

function renderQuota(own: QuotaShape): CloudQuota {
  const source = own.custom ? 'user' : 'global'
  const statuses: LimitStatus[] = []
  if (own.max_concurrent !== null) {
    const [limit, current] = [own.max_concurrent, own.active_jobs + own.active_reservations]
    const use = useOf(current, limit)
    const message = use.is_exceeded
      ? quotaMessage(limit)
      : use.is_warning
        ? `${current} of ${limit} concurrent jobs in use`
        : null
    statuses.push({ quota_type: 'concurrent_jobs', limit, current, action: 'block', ...use, message, source })
  }
  const { cost_limit: limit, spent: current, period } = own
  if (limit !== null) {
    const use = useOf(current, limit)
    const message = costMessage(use, current, limit, period)
    statuses.push({ quota_type: `cost_${PERIODS[period]}`, limit, current, action: 'block', ...use, message, source })
  }
  const usage = { inUse: own.active_jobs + own.active_reservations, spentMicros: toMicros(current) }
  const limits = {
    maxConcurrent: own.max_concurrent,
    costLimitMicros: limit === null ? null : toMicros(limit),
    period,
  }
  const admission = admit(limits, usage, 1, 0)
  return {
    user_id: own.user_id,
    statuses,
    can_submit: admission.ok,
    blocking_reasons: admission.ok ? [] : [admission.message],
  }
}
