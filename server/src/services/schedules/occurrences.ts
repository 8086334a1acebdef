import { IchidoError, type OccurrenceShape } from '@ichido/sdk/protocol'
import type { Caller } from '../../core/limits/roles.ts'
import { DEFAULT_QUEUE } from '../../core/run/job.ts'
import type { Definition } from '../../core/schedule/definition.ts'
import { GRACE_MS, lastTicks } from '../../core/schedule/ticks.ts'
import { takesData } from '../../core/schedule/trigger.ts'
import { findDefinitionNow } from '../../store/schedules/definitions.ts'
import { findOccurrences, type Occurrence, readScheduleCounts } from '../../store/schedules/occurrences.ts'
import { runDefinition } from '../../store/schedules/run-definition.ts'
import type { SubmitOutcome } from '../../store/submission/submission.ts'
import type { Deps } from '../deps.ts'
import { iso, isoOrNull } from '../iso.ts'
import { notFound } from '../not-found.ts'
import type { SubmitService } from '../submission/submit-job.ts'

export interface LedgerRange {
  fromMs: number | null
  /** Exclusive; null: now. */
  toMs: number | null
}

export interface OccurrenceService {
  /**
   * Expected and actual ticks, newest first, before the instant that the page before ended with. Whatever is expected and not
   * recorded shows, so that a schedule that has stopped is seen.
   */
  ledger(
    name: string,
    range: LedgerRange,
    limit: number,
    beforeMs: number | null,
  ): Promise<{ data: OccurrenceShape[]; nextMs: number | null }>
  /** A job of the definition now, of the user whose jobs it makes; the audit says who asked for it. */
  run(caller: Caller, name: string, key: string | null): Promise<SubmitOutcome>
  /** For metrics. */
  counts(): Promise<{ overdue: number; waiting: number }>
}

/** Keys of run now do not meet those of submissions. */
const OPERATION = 'run'

export function createOccurrenceService({ world, store }: Deps, submission: SubmitService): OccurrenceService {
  async function find(name: string) {
    const { definition, nowMs } = await store.read(findDefinitionNow(name))
    if (definition === null) throw notFound('definition', name)
    return { definition, nowMs }
  }

  return {
    async ledger(name, range, limit, beforeMs) {
      const { definition, nowMs } = await find(name)
      const fromMs = range.fromMs ?? Number.MIN_SAFE_INTEGER
      const toMs = Math.min(range.toMs ?? nowMs + 1, beforeMs ?? Number.MAX_SAFE_INTEGER)
      const max = limit + 1
      const expected = expectedTicks(definition, fromMs, toMs, max)
      const { recorded, unrecorded } = await store.read(findOccurrences(definition.id, { fromMs, toMs, max }, expected))
      const entries = [
        ...recorded.map((one) => ({ atMs: one.scheduledForMs, shape: renderRecorded(one, nowMs) })),
        ...unrecorded.map((atMs) => ({ atMs, shape: renderExpected(definition, atMs, nowMs) })),
      ].sort((a, b) => b.atMs - a.atMs)
      const page = entries.slice(0, limit)
      const nextMs = entries.length > limit ? (page.at(-1)?.atMs ?? null) : null
      return { data: page.map(({ shape }) => shape), nextMs }
    },

    async run(caller, name, key) {
      const { definition } = await find(name)
      const { id, userId, kind, queue, priority, labels, policy } = definition
      const by = { id: world.uuid(), actor: caller.userId }
      const payload = JSON.parse(definition.payload) as unknown
      if (definition.on !== null && takesData(payload)) {
        const message = `The payload of ${name} takes fields of a trigger; send a trigger with the topic ${definition.on.topic}`
        throw new IchidoError('INVALID_PAYLOAD', message, { field: 'payload' })
      }
      const input = { kind, queue: queue ?? DEFAULT_QUEUE, payload, priority, ...(labels === null ? {} : { labels }) }
      const asked = { key, operation: OPERATION, hashOver: { definition_id: id }, policy, definitionId: id }
      return submission.submitBy(
        (item, render) => runDefinition(name, item, render, by),
        { userId, role: 'submitter' },
        input,
        asked,
      )
    },

    counts: () => store.read(readScheduleCounts(GRACE_MS)),
  }
}

/** Of what was expected before the last change only the next tick is known: it may have been another rule. */
function expectedTicks(definition: Definition, fromMs: number, toMs: number, max: number): number[] {
  const { schedule, nextTickAtMs, updatedAtMs } = definition
  if (schedule === null) return []
  const next = nextTickAtMs !== null && nextTickAtMs >= fromMs && nextTickAtMs < toMs ? [nextTickAtMs] : []
  try {
    return [...new Set([...next, ...lastTicks(schedule, Math.max(fromMs, updatedAtMs + 1), toMs, max)])]
  } catch {
    // A time zone that this node does not know.
    return next
  }
}

function renderRecorded(one: Occurrence, nowMs: number): OccurrenceShape {
  const { scheduledForMs, outcome, origin } = one
  // What waits is later with every look.
  const untilMs = outcome === 'job' ? one.updatedAtMs : nowMs
  const telling = origin === 'schedule' && outcome !== 'skipped'
  return {
    scheduled_for: iso(scheduledForMs),
    outcome,
    job_id: one.jobId,
    reason: one.reason,
    origin,
    skipped_until: isoOrNull(one.skippedUntilMs),
    created_at: iso(one.createdAtMs),
    late_seconds: telling ? Math.max(0, untilMs - scheduledForMs) / 1000 : null,
  }
}

function renderExpected({ pausedAtMs }: Definition, atMs: number, nowMs: number): OccurrenceShape {
  const lateMs = nowMs - atMs
  const paused = pausedAtMs !== null && atMs >= pausedAtMs
  const outcome = paused ? 'skipped' : lateMs > GRACE_MS ? 'missing' : 'pending'
  return {
    scheduled_for: iso(atMs),
    outcome,
    job_id: null,
    reason: paused ? 'paused' : null,
    origin: 'schedule',
    skipped_until: null,
    created_at: null,
    late_seconds: paused || lateMs < 0 ? null : lateMs / 1000,
  }
}
