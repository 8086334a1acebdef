import { type BackfillShape, DEFAULT_QUEUE, IchidoError, type OccurrenceShape, type Page } from '@ichido/sdk/protocol'
import { BACKFILL_TICKS_MAX } from '../../contract/definitions.ts'
import type { Caller } from '../../core/limits/roles.ts'
import type { Definition } from '../../core/schedule/definition.ts'
import { ticksBetween } from '../../core/schedule/schedule.ts'
import { GRACE_MS, lastTicks } from '../../core/schedule/ticks.ts'
import { takesData } from '../../core/schedule/trigger.ts'
import { pageOf, type Store } from '../../store/port.ts'
import {
  abortBackfill,
  type Backfill,
  beginBackfill,
  findBackfill,
  listBackfills,
} from '../../store/schedules/backfills.ts'
import { runDefinition } from '../../store/schedules/definition-jobs.ts'
import { findDefinitionNow } from '../../store/schedules/definitions.ts'
import { findKnown, findOccurrences, type Occurrence, readScheduleCounts } from '../../store/schedules/occurrences.ts'
import type { SubmitOutcome } from '../../store/submission/submission.ts'
import { iso, isoOrNull, notFound, renderPage, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { beginWithinMaximum } from '../limits/maximum.ts'
import type { SubmitService } from '../submission/submit-job.ts'

interface LedgerRange {
  fromMs: number | null
  /** Exclusive; null: now. */
  toMs: number | null
}

export interface PastRange extends LedgerRange {
  fromMs: number
}

export interface OccurrenceService {
  /**
   * Expected and recorded ticks, newest first, before the last instant of the previous page. Expected ticks without a record
   * show that a schedule has stopped.
   */
  ledger(
    name: string,
    range: LedgerRange,
    limit: number,
    beforeMs: number | null,
  ): Promise<{ data: OccurrenceShape[]; nextMs: number | null }>
  /** Makes a job of the definition now, for its owner. The audit has the caller. */
  run(caller: Caller, name: string, key: string | null): Promise<SubmitOutcome>
  /** For metrics. */
  counts(): Promise<{ overdue: number; waiting: number }>
}

/** The keys of these jobs are separate from those of submissions. */
const OPERATION = 'run'
/** Ticks that one statement looks up. */
const LOOKUP_MAX = 1_000

export function createOccurrenceService({ world, store }: Deps, submission: SubmitService): OccurrenceService {
  return {
    async ledger(name, range, limit, beforeMs) {
      const { definition, nowMs } = await findNow(store, name)
      const fromMs = range.fromMs ?? Number.MIN_SAFE_INTEGER
      const toMs = Math.min(range.toMs ?? nowMs + 1, beforeMs ?? Number.MAX_SAFE_INTEGER)
      const max = limit + 1
      const expected = expectedTicks(definition, fromMs, toMs, max)
      const { recorded, unrecorded } = await store.read(findOccurrences(definition.id, { fromMs, toMs, max }, expected))
      const entries = [
        ...recorded.map((one) => ({ atMs: one.scheduledForMs, shape: renderRecorded(one, nowMs) })),
        ...unrecorded.map((atMs) => ({ atMs, shape: renderExpected(definition, atMs, nowMs) })),
      ].sort((a, b) => b.atMs - a.atMs)
      const { rows, next } = pageOf(entries, limit, ({ atMs }) => atMs)
      return { data: rows.map(({ shape }) => shape), nextMs: next }
    },

    async run(caller, name, key) {
      const { definition } = await findNow(store, name)
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

/** Before the last change the rule may have been another, so of that time only the next tick is known. */
function expectedTicks(definition: Definition, fromMs: number, toMs: number, max: number): number[] {
  const { schedule, nextTickAtMs, updatedAtMs } = definition
  if (schedule === null) return []
  const next = nextTickAtMs !== null && nextTickAtMs >= fromMs && nextTickAtMs < toMs ? [nextTickAtMs] : []
  try {
    return [...new Set([...next, ...lastTicks(schedule, Math.max(fromMs, updatedAtMs + 1), toMs, max)])]
  } catch {
    // This node does not know the time zone.
    return next
  }
}

function renderRecorded(one: Occurrence, nowMs: number): OccurrenceShape {
  const { scheduledForMs, outcome, origin } = one
  // A waiting tick gets later until its job is made.
  const untilMs = outcome === 'job' ? one.updatedAtMs : nowMs
  const telling = origin === 'schedule' && outcome !== 'skipped'
  return {
    scheduled_for: iso(scheduledForMs),
    outcome,
    job_id: one.jobId,
    job_state: one.jobState,
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
    job_state: null,
    reason: paused ? 'paused' : null,
    origin: 'schedule',
    skipped_until: null,
    created_at: null,
    late_seconds: paused || lateMs < 0 ? null : lateMs / 1000,
  }
}

interface BackfillCounts {
  matched: number
  made_before: number
  skipped: number
  would_make: number
}

export interface BackfillService {
  count(name: string, range: PastRange): Promise<BackfillCounts>
  /** The leader runs it, also after a restart. */
  begin(caller: Caller, name: string, range: PastRange): Promise<BackfillShape>
  get(name: string, backfillId: string): Promise<BackfillShape>
  list(name: string, limit: number, after: string | null): Promise<Page<BackfillShape>>
  /** Jobs that were already made stay. */
  abort(caller: Caller, name: string, backfillId: string): Promise<BackfillShape>
}

export function createBackfillService(deps: Deps): BackfillService {
  const { world, store } = deps
  async function ticksOf(name: string, range: PastRange) {
    const { definition, nowMs } = await findNow(store, name)
    const { schedule } = definition
    const { fromMs, toMs } = { ...range, toMs: range.toMs ?? nowMs }
    if (schedule === null) throw refusal('from', `The definition ${name} has no schedule, and no ticks`)
    if (fromMs >= toMs) throw refusal('to', 'to must be after from')
    if (toMs > nowMs) throw refusal('to', 'to must not be in the future')
    const ticks = ticksBetween(schedule, fromMs, toMs, BACKFILL_TICKS_MAX + 1)
    if (ticks.length > BACKFILL_TICKS_MAX) {
      throw refusal('from', `The range has more than ${BACKFILL_TICKS_MAX} ticks: use a shorter range`)
    }
    return { definition, schedule, fromMs, toMs, ticks }
  }

  async function findOf(definition: Definition, backfillId: string): Promise<Backfill> {
    requireId('backfill', backfillId)
    const found = await store.read(findBackfill(backfillId))
    if (found === null || found.definitionId !== definition.id) throw notFound('backfill', backfillId)
    return found
  }

  return {
    async count(name, range) {
      const { definition, ticks } = await ticksOf(name, range)
      const counts = { made: 0, skipped: 0 }
      for (let i = 0; i < ticks.length; i += LOOKUP_MAX) {
        const known = await store.read(findKnown(definition.id, ticks.slice(i, i + LOOKUP_MAX)))
        for (const what of known.values()) counts[what]++
      }
      const { made, skipped } = counts
      return { matched: ticks.length, made_before: made, skipped, would_make: ticks.length - made - skipped }
    },

    async begin(caller, name, range) {
      const { ticks, ...found } = await ticksOf(name, range)
      const item = { backfillId: world.uuid(), ...found, matched: ticks.length }
      const by = { id: world.uuid(), actor: caller.userId }
      return renderBackfill(name, await beginWithinMaximum(deps, item.backfillId, caller, beginBackfill(item, by)))
    },

    async get(name, backfillId) {
      const { definition } = await findNow(store, name)
      return renderBackfill(name, await findOf(definition, backfillId))
    },

    async list(name, limit, after) {
      const { definition } = await findNow(store, name)
      return renderPage(await store.read(listBackfills(definition.id, limit, after)), (row) =>
        renderBackfill(name, row),
      )
    },

    async abort(caller, name, backfillId) {
      const { definition } = await findNow(store, name)
      await findOf(definition, backfillId)
      const aborted = await store.write(abortBackfill(backfillId, name, { id: world.uuid(), actor: caller.userId }))
      const now = aborted ?? (await findOf(definition, backfillId))
      // The client repeats an abort whose answer got lost.
      if (now.state === 'aborted') return renderBackfill(name, now)
      throw new IchidoError('ALREADY_ENDED', `Backfill ${backfillId} is ${now.state}`, { state: now.state })
    },
  }
}

function refusal(field: string, message: string): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', message, { field })
}

function renderBackfill(name: string, backfill: Backfill): BackfillShape {
  const { actor, state, matched, made, madeBefore, skipped } = backfill
  return {
    backfill_id: backfill.backfillId,
    definition: name,
    actor,
    state,
    from: iso(backfill.fromMs),
    to: iso(backfill.toMs),
    matched,
    made,
    made_before: madeBefore,
    skipped,
    began_at: iso(backfill.beganAtMs),
    ended_at: isoOrNull(backfill.endedAtMs),
  }
}

async function findNow(store: Store, name: string): Promise<{ definition: Definition; nowMs: number }> {
  const { definition, nowMs } = await store.read(findDefinitionNow(name))
  if (definition === null) throw notFound('definition', name)
  return { definition, nowMs }
}
