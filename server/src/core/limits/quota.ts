/** Quota and cost arithmetic. Money is counted in millionths, as integers: sums of floats drift. */
export const MICROS = 1_000_000
export const WARN_FROM = 0.8

export const COST_PERIODS = ['day', 'month'] as const

export type CostPeriod = (typeof COST_PERIODS)[number]

export interface Quota {
  maxConcurrent: number | null
  costLimitMicros: number | null
  period: CostPeriod
  /** For payloads, artifacts and logs; absent: unlimited. */
  maxBytes?: number | null
}

export interface ByteQuota {
  maxBytes: number | null
  /** Null: the bytes have not been counted. */
  usedBytes: number | null
}

export interface BytesRefusal {
  code: 'QUOTA_EXCEEDED'
  message: string
  details: { limit: 'max_bytes'; used: number; max: number }
}

interface Usage {
  /** Active jobs + live reservations. */
  inUse: number
  spentMicros: number
}

type Admission =
  | { ok: true; quotaWarnings: string[]; costLimitWarning: string | null }
  | { ok: false; code: 'QUOTA_EXCEEDED' | 'COST_LIMIT_EXCEEDED'; message: string }

/** Decides whether to admit one more job with this cost. `slots` is 0 if the job brings its own reservation. */
export function admit(quota: Quota, usage: Usage, slots: 0 | 1, costMicros: number): Admission {
  const { maxConcurrent, costLimitMicros, period } = quota
  const inUse = usage.inUse + slots
  // A job that brings its reservation takes no new slot, and is admitted even after the limit was lowered.
  if (slots > 0 && maxConcurrent !== null && inUse > maxConcurrent) {
    return { ok: false, code: 'QUOTA_EXCEEDED', message: quotaMessage(maxConcurrent) }
  }
  const spent = usage.spentMicros + costMicros
  if (costLimitMicros !== null && costMicros > 0 && spent > costLimitMicros) {
    return {
      ok: false,
      code: 'COST_LIMIT_EXCEEDED',
      message: `Cost limit exceeded: ${money(usage.spentMicros)} of ${money(costLimitMicros)} per ${period} is spent, this job would add ${money(costMicros)}`,
    }
  }
  return {
    ok: true,
    quotaWarnings: maxConcurrent === null ? [] : quotaWarnings(inUse, maxConcurrent),
    costLimitWarning: costLimitMicros === null ? null : costWarning(spent, costLimitMicros, period),
  }
}

/** How many more bytes may be stored. */
export function bytesLeft({ maxBytes, usedBytes }: ByteQuota): number {
  return maxBytes === null ? Number.POSITIVE_INFINITY : Math.max(0, maxBytes - (usedBytes ?? 0))
}

/** Returns a refusal if that many bytes may not be stored, else null. */
export function refuseBytes(quota: ByteQuota, bytes: number): BytesRefusal | null {
  const { maxBytes: max, usedBytes } = quota
  const used = usedBytes ?? 0
  if (max === null || bytes === 0 || bytes <= bytesLeft(quota)) return null
  const message = `Quota exceeded: ${used} of ${max} bytes are stored, and this would add ${bytes}`
  return { code: 'QUOTA_EXCEEDED', message, details: { limit: 'max_bytes', used, max } }
}

export function bytesWarnings({ maxBytes, usedBytes }: ByteQuota): string[] {
  if (maxBytes === null || usedBytes === null || usedBytes < maxBytes * WARN_FROM) return []
  return [`${usedBytes} of ${maxBytes} bytes stored`]
}

export function quotaMessage(maxConcurrent: number): string {
  return `Quota exceeded: Maximum ${maxConcurrent} concurrent jobs allowed`
}

function quotaWarnings(inUse: number, max: number): string[] {
  return inUse < max * WARN_FROM ? [] : [`${inUse} of ${max} concurrent jobs in use`]
}

function costWarning(spentMicros: number, limitMicros: number, period: CostPeriod): string | null {
  if (spentMicros < limitMicros * WARN_FROM) return null
  const percent = limitMicros === 0 ? 100 : Math.floor((spentMicros / limitMicros) * 100)
  return `${money(spentMicros)} of ${money(limitMicros)} per ${period} is spent (${percent} %)`
}

export function money(micros: number): string {
  const text = (micros / MICROS).toFixed(6)
  return text.replace(/(\.\d\d\d*?)0+$/, '$1')
}

export function toMicros(amount: number): number {
  return Math.round(amount * MICROS)
}

/** The first instant, in UTC, of the day or month that a cost is counted in. */
export function periodStartMs(period: CostPeriod, atMs: number): number {
  const at = new Date(atMs)
  return Date.UTC(at.getUTCFullYear(), at.getUTCMonth(), period === 'day' ? at.getUTCDate() : 1)
}
