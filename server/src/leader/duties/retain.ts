import type { World } from '@ichido/sdk/world'
import { SERIES_KEPT_MINUTES } from '../../core/limits/series.ts'
import type { SettingName } from '../../core/limits/settings.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Settings } from '../../services/system/settings.ts'
import { removeExpiredSessions } from '../../store/access/sessions.ts'
import { removeQueueTimes } from '../../store/leasing/fair-tags.ts'
import { removeNames } from '../../store/limits/user-names.ts'
import type { Store } from '../../store/port.ts'
import { removeExpiredKeys } from '../../store/submission/keys.ts'
import { removeMinuteCounts } from '../../store/system/minute-counts.ts'
import {
  type Ages,
  findDueEvents,
  findDueJobs,
  findDueLetters,
  findResultTtls,
  type LetterPlace,
  type Page,
  removeAudit,
  removeDeliveries,
  removeEvents,
  removeJobs,
  removeReservations,
  removeTriggers,
} from '../../store/system/retention.ts'
import { removeSeries } from '../../store/system/series.ts'
import type { Term } from '../../store/system/term.ts'
import { minuteCountsMs } from './alerts/windowed.ts'

interface RetainOptions {
  world: Pick<World, 'monotonic'>
  store: Store
  settings: Settings
  meter: Pick<Meter, 'removed' | 'retentionBehind'>
}

const DAY_MS = 24 * 3_600_000
/** The pause between two batches of a backlog, because other work needs the disk, too. */
const PACE_MS = 20
const FIRST_LETTER: LetterPlace = { deadAtMs: 0, jobId: FIRST_ID }

/**
 * Removes data whose retention has ended, one bounded batch of each kind in turn. The places of the walks are in
 * memory, so a new leader starts again.
 */
export function createRetain(options: RetainOptions, term: Term): () => Promise<number | null> {
  const { world, store, settings, meter } = options
  const places = new Map<string, string>()
  let letter = FIRST_LETTER
  let behindSinceMs: number | null = null

  const batchMax = () => settings.get('retain_batch_max')
  /** Null means for ever. */
  const age = (name: SettingName, unitMs: number) => Math.ceil(settings.get(name) * unitMs) || null
  const ages = (): Ages => ({
    jobMs: age('job_retention_seconds', 1000),
    letterMs: age('dead_letter_retention_seconds', 1000),
  })

  /** Each step returns true if more may be left. */
  const steps: (() => Promise<boolean>)[] = [
    () => inBatches('idempotency_keys', 1, (_, max) => removeExpiredKeys(term, max)),
    () =>
      inBatches('job_reservations', age('reservation_retention_days', DAY_MS), (ageMs, max) =>
        removeReservations(term, ageMs, max),
      ),
    () => inBatches('audit', age('audit_retention_days', DAY_MS), (ageMs, max) => removeAudit(term, ageMs, max)),
    () =>
      inBatches('triggers', age('trigger_retention_seconds', 1000), (ageMs, max) => removeTriggers(term, ageMs, max)),
    () => inBatches('sessions', 1, (_, max) => removeExpiredSessions(term, max)),
    () =>
      inBatches('webhook_deliveries', age('webhook_delivery_retention_days', DAY_MS), (ageMs, max) =>
        removeDeliveries(term, 'delivered', ageMs, max),
      ),
    () =>
      inBatches('webhook_deliveries', age('webhook_dead_retention_days', DAY_MS), (ageMs, max) =>
        removeDeliveries(term, 'dead', ageMs, max),
      ),
    () => inBatches('user_names', DAY_MS, (ageMs, max) => removeNames(term, ageMs, max)),
    () => inBatches('queue_times', DAY_MS, (ageMs, max) => removeQueueTimes(term, ageMs, max)),
    () => inBatches('minute_counts', minuteCountsMs(settings), (ageMs, max) => removeMinuteCounts(term, ageMs, max)),
    () => inBatches('queue_series', SERIES_KEPT_MINUTES, (minutes, max) => removeSeries(term, minutes, max)),
    events,
    outlivedResults,
    jobs,
    letters,
  ]

  async function inBatches(
    table: string,
    ageMs: number | null,
    remove: (ageMs: number, max: number) => ReturnType<typeof removeAudit>,
  ): Promise<boolean> {
    if (ageMs === null) return false
    const max = batchMax()
    const removed = await store.write(remove(ageMs, max))
    meter.removed(table, removed)
    return removed === max
  }

  /** Walks one page further, and starts again after the end. */
  async function walk(
    name: string,
    find: (after: string, max: number) => Promise<Page>,
    remove: (due: string[]) => Promise<boolean>,
  ): Promise<boolean> {
    const page = await find(places.get(name) ?? FIRST_ID, batchMax())
    // Jobs that were not removed completely are found again.
    if (await remove(page.due)) return true
    if (page.next === null) places.delete(name)
    else places.set(name, page.next)
    return page.next !== null
  }

  async function goingJobs(due: string[]): Promise<boolean> {
    if (due.length === 0) return false
    const { rows, unfinished } = await store.write(removeJobs(term, due, ages()))
    for (const [table, count] of rows) meter.removed(table, count)
    return unfinished
  }

  async function jobs(): Promise<boolean> {
    const { jobMs: ageMs } = ages()
    if (ageMs === null) return false
    const find = (after: string, max: number) => store.read(findDueJobs({ queue: null, ageMs, after }, ages(), max))
    return walk('jobs', find, goingJobs)
  }

  async function outlivedResults(): Promise<boolean> {
    let more = false
    for (const { queue, ttlMs: ageMs } of await store.read(findResultTtls())) {
      const find = (after: string, max: number) => store.read(findDueJobs({ queue, ageMs, after }, ages(), max))
      if (await walk(`queue ${queue}`, find, goingJobs)) more = true
    }
    return more
  }

  async function letters(): Promise<boolean> {
    const { letterMs } = ages()
    if (letterMs === null) return false
    const { due, next } = await store.read(findDueLetters(letterMs, letter, batchMax()))
    if (await goingJobs(due)) return true
    letter = next ?? FIRST_LETTER
    return next !== null
  }

  async function events(): Promise<boolean> {
    const ageMs = age('event_retention_seconds', 1000)
    if (ageMs === null) return false
    return walk(
      'events',
      (after, max) => store.read(findDueEvents(ageMs, after, max)),
      async (due) => {
        if (due.length === 0) return false
        const { removed, unfinished } = await store.write(removeEvents(term, due, ageMs))
        meter.removed('events', removed)
        return unfinished
      },
    )
  }

  return async () => {
    const beganMs = world.monotonic()
    let more = false
    const failures: unknown[] = []
    for (const step of steps) {
      // A step that fails does not delay the others.
      if (await step().catch((error: unknown) => failures.push(error) === 0)) more = true
    }
    if (failures.length > 0) throw failures[0]
    behindSinceMs = more ? (behindSinceMs ?? beganMs) : null
    meter.retentionBehind(behindSinceMs === null ? 0 : world.monotonic() - behindSinceMs)
    return more ? PACE_MS : null
  }
}
