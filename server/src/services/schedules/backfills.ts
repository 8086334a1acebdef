import { type BackfillShape, IchidoError, type Page } from '@ichido/sdk/protocol'
import { BACKFILL_TICKS_MAX } from '../../contract/occurrences.ts'
import type { Caller } from '../../core/limits/roles.ts'
import type { Definition } from '../../core/schedule/definition.ts'
import { ticksBetween } from '../../core/schedule/schedule.ts'
import {
  abortBackfill,
  type Backfill,
  beginBackfill,
  findBackfill,
  listBackfills,
} from '../../store/schedules/backfills.ts'
import { findDefinitionNow } from '../../store/schedules/definitions.ts'
import { findKnown } from '../../store/schedules/occurrences.ts'
import type { Deps } from '../deps.ts'
import { iso, isoOrNull } from '../iso.ts'
import { beginOperation } from '../limits/operations.ts'
import { notFound, requireId } from '../not-found.ts'

export interface PastRange {
  fromMs: number
  /** Exclusive; null: now. */
  toMs: number | null
}

export interface BackfillCounts {
  matched: number
  made_before: number
  skipped: number
  would_make: number
}

export interface BackfillService {
  count(name: string, range: PastRange): Promise<BackfillCounts>
  /** The leader carries it out, from now on and across restarts. */
  begin(caller: Caller, name: string, range: PastRange): Promise<BackfillShape>
  get(name: string, backfillId: string): Promise<BackfillShape>
  list(name: string, limit: number, after: string | null): Promise<Page<BackfillShape>>
  /** What was made stays made. */
  abort(caller: Caller, name: string, backfillId: string): Promise<BackfillShape>
}

/** So many at a time are looked up. */
const LOOKUP_MAX = 1_000

export function createBackfillService(deps: Deps): BackfillService {
  const { world, store } = deps
  async function find(name: string) {
    const { definition, nowMs } = await store.read(findDefinitionNow(name))
    if (definition === null) throw notFound('definition', name)
    return { definition, nowMs }
  }

  async function ticksOf(name: string, range: PastRange) {
    const { definition, nowMs } = await find(name)
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
      return render(name, await beginOperation(deps, item.backfillId, caller, beginBackfill(item, by)))
    },

    async get(name, backfillId) {
      const { definition } = await find(name)
      return render(name, await findOf(definition, backfillId))
    },

    async list(name, limit, after) {
      const { definition } = await find(name)
      const { rows, next } = await store.read(listBackfills(definition.id, limit, after))
      return { data: rows.map((row) => render(name, row)), next_cursor: next }
    },

    async abort(caller, name, backfillId) {
      const { definition } = await find(name)
      await findOf(definition, backfillId)
      const aborted = await store.write(abortBackfill(backfillId, name, { id: world.uuid(), actor: caller.userId }))
      const now = aborted ?? (await findOf(definition, backfillId))
      // An abort whose answer got lost is sent again.
      if (now.state === 'aborted') return render(name, now)
      throw new IchidoError('ALREADY_ENDED', `Backfill ${backfillId} is ${now.state}`, { state: now.state })
    },
  }
}

function refusal(field: string, message: string): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', message, { field })
}

function render(name: string, backfill: Backfill): BackfillShape {
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
