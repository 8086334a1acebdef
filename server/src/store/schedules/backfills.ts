import type { BackfillState } from '@ichido/sdk/protocol'
import type { Definition } from '../../core/schedule/definition.ts'
import type { Schedule } from '../../core/schedule/schedule.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import type { Listed } from '../jobs/list-jobs.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, pageOf, query, type Values, type Work } from '../statement.ts'
import type { Term } from '../system/leadership.ts'
import * as sql from './backfills.sql.ts'
import type { Maker } from './definition-jobs.ts'
import { readDefinition } from './definitions.sql.ts'
import { toDefinition } from './definitions.ts'
import { insertOccurrences } from './ticks.sql.ts'
import { readLoads, submitTicks, type Tick, tickItem } from './ticks.ts'

/** The ticks of a past range, made up for one after the other, as one thing that can be watched and aborted. */
export interface Backfill {
  backfillId: string
  definitionId: string
  actor: string
  fromMs: number
  /** Exclusive. */
  toMs: number
  /** Where it goes on. */
  atMs: number
  /** As it was when this began: ticks of two rules would add up to nonsense. */
  schedule: Schedule
  state: BackfillState
  version: number
  matched: number
  made: number
  /** Ticks whose job was made before, or waits to be. */
  madeBefore: number
  /** Ticks that were skipped, and stay so. */
  skipped: number
  beganAtMs: number
  endedAtMs: number | null
}

export interface NewBackfill {
  backfillId: string
  definition: Pick<Definition, 'id' | 'name'>
  fromMs: number
  toMs: number
  schedule: Schedule
  matched: number
}

const LAST = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

export function beginBackfill(item: NewBackfill, by: By): Command<Backfill> {
  return command('begin_backfill', function* work(again): Work<Backfill> {
    const { backfillId, definition, fromMs, toMs, schedule, matched } = item
    if (!(yield* isRecorded(again, by))) {
      yield* query(sql.insertBackfill, {
        id: backfillId,
        definition_id: definition.id,
        actor: by.actor,
        from_at: fromMs,
        to_at: toMs,
        schedule: JSON.stringify(schedule),
        matched,
      })
      const range = { from: new Date(fromMs).toISOString(), to: new Date(toMs).toISOString() }
      yield* record(by, 'definition.backfill', definition.name, null, { backfill_id: backfillId, ...range, matched })
    }
    return toBackfill(yield* exactlyOne(sql.readBackfill, { id: backfillId }))
  })
}

export function findBackfill(backfillId: string): Command<Backfill | null> {
  return command('find_backfill', function* work(): Work<Backfill | null> {
    const row = yield* one(sql.readBackfill, { id: backfillId })
    return row === undefined ? null : toBackfill(row)
  })
}

/** Newest first. */
export function listBackfills(definitionId: string, limit: number, after: string | null): Command<Listed<Backfill>> {
  return command('list_backfills', function* work(): Work<Listed<Backfill>> {
    const page = { definition_id: definitionId, limit: limit + 1, after: after ?? LAST }
    const found = (yield* query(sql.listBackfills, page)).map(toBackfill)
    return pageOf(found, limit, ({ backfillId }) => backfillId)
  })
}

/** Null when it is not running any more. A step that is under way ends first; after the answer none follows. */
export function abortBackfill(backfillId: string, name: string, by: By): Command<Backfill | null> {
  return command('abort_backfill', function* work(): Work<Backfill | null> {
    const row = yield* one(sql.endBackfill, { id: backfillId, state: 'aborted' })
    if (row === undefined) return null
    const { made, made_before, skipped } = row
    yield* record(by, 'definition.backfill.abort', name, null, { backfill_id: backfillId, made, made_before, skipped })
    return toBackfill(row)
  })
}

export interface RunningBackfill {
  backfill: Backfill
  /** Null: it was deleted. */
  definition: Definition | null
}

export function runningBackfills(max: number, afterId: string): Command<RunningBackfill[]> {
  return command('running_backfills', function* work(): Work<RunningBackfill[]> {
    const running: RunningBackfill[] = []
    for (const row of yield* query(sql.readRunningBackfills, { max, after: afterId })) {
      const found = yield* one(readDefinition, { id: row.definition_id })
      running.push({ backfill: toBackfill(row), definition: found === undefined ? null : toDefinition(found) })
    }
    return running
  })
}

export interface BackfillStep {
  /** As it was seen. */
  backfill: Backfill
  /** Null: it was deleted. */
  definition: Definition | null
  /** The next of them. */
  ticks: readonly number[]
}

export interface BackfillProgress {
  made: Tick[]
  /** It came further, and has more to do. */
  goesOn: boolean
}

/**
 * One bounded step, in one transaction with the place that it came to. A tick that is in the ledger is left alone. At a full
 * quota it stops, and tries again. Jobs that must not overlap are made one at a time. Locks: the user, the term, the backfill,
 * its definition.
 */
export function stepBackfill(term: Term, { backfill, definition, ticks }: BackfillStep, maker: Maker) {
  const { backfillId } = backfill
  return command('backfill', function* work(): Work<BackfillProgress> {
    if (definition !== null) yield* lockUsersOf([definition.userId])
    const taken = yield* one(sql.takeBackfillStep, { ...term, id: backfillId, version: backfill.version })
    if (taken === undefined) return { made: [], goesOn: false }
    if (definition === null || ticks.length === 0) {
      yield* query(sql.endBackfill, { id: backfillId, state: definition === null ? 'aborted' : 'done' })
      return { made: [], goesOn: false }
    }
    const locked = yield* one(sql.lockDefinition, { id: definition.id, version: definition.version })
    // It was changed since: so may have been what its jobs are like.
    if (locked === undefined) return { made: [], goesOn: true }
    const overlap = (definition.schedule ?? backfill.schedule).overlap
    const { made, known, dealtWith } = yield* makeSome({ definition, overlap, ticks }, locked.now, maker)
    const last = dealtWith.at(-1)
    if (last === undefined) return { made, goesOn: false }
    const skipped = dealtWith.filter((tick) => known.get(tick) === 'skipped').length
    const counts = { made: made.length, made_before: dealtWith.length - made.length - skipped, skipped }
    yield* query(sql.recordBackfillStep, { id: backfillId, at: last + 1, ...counts })
    return { made, goesOn: true }
  })
}

interface Asked {
  definition: Definition
  overlap: Schedule['overlap']
  ticks: readonly number[]
}

function* makeSome({ definition, overlap, ticks }: Asked, nowMs: number, maker: Maker) {
  const { id } = definition
  const known = yield* readKnown(id, ticks)
  let fresh = ticks.filter((tick) => !known.has(tick))
  if (overlap !== 'allow') {
    const { active, waiting } = (yield* readLoads([id])).get(id) ?? { active: true, waiting: 0 }
    fresh = active || waiting > 0 ? [] : fresh.slice(0, 1)
  }
  const items = fresh.map((tick) => tickItem(definition, tick, nowMs, nowMs, maker))
  const outcomes = yield* submitTicks(items, maker)
  const made = items.flatMap(({ jobId, queue }, i): Tick[] => {
    const outcome = outcomes.get(jobId)
    if (outcome === undefined || outcome.kind === 'refused') return []
    const scheduledForMs = fresh[i] ?? 0
    const wakes = outcome.due ? queue : null
    return [{ definitionId: id, scheduledForMs, outcome: 'job', reason: null, jobId, wakes, lateMs: 0 }]
  })
  const rows = made.map(({ scheduledForMs, jobId }) => ({
    definition_id: id,
    scheduled_for: scheduledForMs,
    outcome: 'job' as const,
    job_id: jobId,
    reason: null,
    run_at: null,
    skipped_until: null,
    origin: 'backfill' as const,
  }))
  const inserted = yield* each(insertOccurrences, rows)
  if (inserted.length !== made.length) throw new Error('A tick came into the ledger while its definition was locked')
  const done = new Set(made.map(({ scheduledForMs }) => scheduledForMs))
  const open = ticks.findIndex((tick) => !known.has(tick) && !done.has(tick))
  return { made, known, dealtWith: open === -1 ? ticks : ticks.slice(0, open) }
}

export type Known = 'made' | 'skipped'

/** Which of these ticks the ledger knows of. One that waits will be made. */
export function* readKnown(definitionId: string, ticks: readonly number[]): Work<Map<number, Known>> {
  const rows = yield* each(
    sql.readKnownTicks,
    ticks.map((tick) => ({ definition_id: definitionId, tick })),
  )
  return new Map(rows.map(({ tick, skipped }) => [tick, skipped ? 'skipped' : 'made']))
}

function toBackfill(row: Values<typeof sql.BACKFILL_ROW>): Backfill {
  return {
    backfillId: row.id,
    definitionId: row.definition_id,
    actor: row.actor,
    fromMs: row.from_at,
    toMs: row.to_at,
    atMs: row.at,
    schedule: row.schedule,
    state: row.state,
    version: row.version,
    matched: row.matched,
    made: row.made,
    madeBefore: row.made_before,
    skipped: row.skipped,
    beganAtMs: row.began_at,
    endedAtMs: row.ended_at,
  }
}
