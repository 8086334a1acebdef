import type { Definition } from '../../core/schedule/definition.ts'
import type { Schedule } from '../../core/schedule/schedule.ts'
import { type DefinitionLoad, jitterMs, type Outcome, type Plan, settleTick } from '../../core/schedule/ticks.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { each, now, one, type ParamsOf, query, type RowOf, type Work } from '../statement.ts'
import type { SubmitOutcome, UntaggedItem } from '../submission/submission.ts'
import type { Term } from '../system/leadership.ts'
import { definitionItem, type Maker, resultOf, submitUnkeyed } from './definition-jobs.ts'
import { toDefinition } from './definitions.ts'
import * as sql from './ticks.sql.ts'

/** A definition as it was seen, and what is to be done about it. */
export interface Planned {
  definition: Pick<Definition, 'id' | 'version' | 'userId'>
  dueAtMs: number
  plan: Plan
}

export interface Tick {
  definitionId: string
  scheduledForMs: number
  outcome: Outcome
  reason: string | null
  jobId: string | null
  /** Set when a worker can have the job now. */
  wakes: string | null
  lateMs: number
}

export interface DueDefinition extends Pick<Definition, 'id' | 'name' | 'version' | 'userId'> {
  schedule: Schedule
  dueAtMs: number
  payloadChars: number
}

export interface Due {
  definitions: DueDefinition[]
  nowMs: number
}

export function findDue(max: number): Command<Due> {
  return command('find_due', function* work(): Work<Due> {
    const rows = yield* query(sql.readDue, { max })
    const nowMs = rows[0]?.now ?? (yield* now())
    return { definitions: rows.map(toDue), nowMs }
  })
}

function toDue(row: RowOf<typeof sql.readDue>): DueDefinition {
  return {
    id: row.id,
    name: row.name,
    version: row.version,
    userId: row.user_id,
    schedule: row.schedule,
    dueAtMs: row.next_tick_at,
    payloadChars: row.payload_chars,
  }
}

/** In ms from now; null when there is none. */
export function findNextTick(): Command<number | null> {
  return command('find_next_tick', function* work(): Work<number | null> {
    const next = yield* one(sql.nextTickIn, {})
    return next?.in_ms ?? null
  })
}

/**
 * Ledger, jobs and the next tick of each definition, in one transaction under the leader's fence. A definition that was
 * paused, changed, deleted or dealt with since it was seen is left alone. Locks: users, the term, definitions; who waited for
 * a user while it held the term would keep the leader from renewing it.
 */
export function makeTicks(term: Term, planned: readonly Planned[], maker: Maker): Command<Tick[]> {
  const seen = JSON.stringify(
    planned.map(({ definition: { id, version }, dueAtMs }) => ({ id, version, next_tick_at: dueAtMs })),
  )
  const byId = new Map(planned.map((one) => [one.definition.id, one]))
  return command('make_ticks', function* work(): Work<Tick[]> {
    yield* lockUsersOf(planned.map(({ definition }) => definition.userId))
    const locked = yield* query(sql.lockDue, { ...term, seen })
    const nowMs = locked[0]?.now ?? 0
    const held = locked.map((row) => ({ ...(byId.get(row.id) ?? missing()), definition: toDefinition(row) }))
    const loads = yield* readLoads(held.map(({ definition }) => definition.id))
    yield* markBackfilled(held, loads)
    const ticks = held.flatMap(({ definition, plan }) =>
      settle(definition, plan, loads.get(definition.id) ?? missing(), nowMs, maker),
    )
    const done = yield* carryOut(ticks, maker)
    const moves = held.map(({ definition, dueAtMs, plan }) => ({
      id: definition.id,
      seen: dueAtMs,
      next: plan.nextTickAtMs,
      last: lastOf(plan, dueAtMs),
    }))
    const moved = yield* each(sql.advanceNextTick, moves)
    if (moved.length !== held.length) throw new Error('A definition that is locked has moved')
    return done
  })
}

interface Draft {
  tick: Tick
  /** Null: a tick that makes no job now. */
  item: UntaggedItem | null
  runAtMs: number | null
  skippedUntilMs: number | null
}

function settle(definition: Definition, plan: Plan, load: DefinitionLoad, nowMs: number, maker: Maker): Draft[] {
  const { id, schedule } = definition
  const base = (scheduledForMs: number) => ({
    definitionId: id,
    scheduledForMs,
    jobId: null,
    wakes: null,
    lateMs: nowMs - scheduledForMs,
  })
  const skipped = (fromMs: number, skippedUntilMs: number | null): Draft => ({
    tick: { ...base(fromMs), outcome: 'skipped', reason: 'catch_up' },
    item: null,
    runAtMs: null,
    skippedUntilMs,
  })
  const made = plan.make.map((scheduledForMs): Draft => {
    const runAtMs = scheduledForMs + jitterMs(id, scheduledForMs, schedule?.jitterSeconds ?? 0)
    const settled = settleTick(schedule?.overlap ?? 'allow', load)
    const item = settled.outcome === 'job' ? tickItem(definition, scheduledForMs, runAtMs, nowMs, maker) : null
    const tick = { ...base(scheduledForMs), ...settled, jobId: item?.jobId ?? null }
    return { tick, item, runAtMs, skippedUntilMs: null }
  })
  const { skip, skipAll } = plan
  const all = skipAll === null ? [] : [skipped(skipAll.fromMs, skipAll.untilMs)]
  return [...all, ...skip.map((tick) => skipped(tick, null)), ...made]
}

/** Whoever finds a tick in the ledger makes no job of it. One that its quota refuses waits. */
function* carryOut(drafts: readonly Draft[], maker: Maker): Work<Tick[]> {
  const inserted = new Set(
    (yield* each(sql.insertOccurrences, drafts.map(occurrenceRow))).map((row) =>
      nameOf(row.definition_id, row.scheduled_for),
    ),
  )
  const ours = drafts.filter(({ tick }) => inserted.has(nameOf(tick.definitionId, tick.scheduledForMs)))
  const outcomes = yield* submitTicks(
    ours.flatMap(({ item }) => item ?? []),
    maker,
  )
  const ticks = ours.map(({ tick, item }) => {
    const outcome = item === null ? undefined : outcomes.get(item.jobId)
    return outcome === undefined ? tick : { ...tick, ...resultOf(outcome) }
  })
  yield* each(
    sql.changeOccurrences,
    ticks.flatMap((tick, i) => (ours[i]?.item && tick.outcome !== 'job' ? [changeOf(tick, 'job')] : [])),
  )
  return ticks
}

function occurrenceRow({ tick, runAtMs, skippedUntilMs }: Draft): ParamsOf<typeof sql.insertOccurrences> {
  const { definitionId, scheduledForMs, outcome, jobId, reason } = tick
  return {
    definition_id: definitionId,
    scheduled_for: scheduledForMs,
    outcome,
    job_id: jobId,
    reason,
    run_at: runAtMs,
    skipped_until: skippedUntilMs,
    origin: 'schedule',
  }
}

/** `seen` is the outcome that the tick has in the ledger. */
export function changeOf(tick: Tick, seen: Outcome): ParamsOf<typeof sql.changeOccurrences> {
  const { definitionId, scheduledForMs, outcome, jobId, reason } = tick
  return { definition_id: definitionId, scheduled_for: scheduledForMs, seen, outcome, job_id: jobId, reason }
}

/** The first tick of all has the first free slot. */
export function* submitTicks(items: readonly UntaggedItem[], maker: Maker): Work<Map<string, SubmitOutcome>> {
  const instantOf = ({ definition }: UntaggedItem) => definition?.scheduledForMs ?? 0
  return yield* submitUnkeyed(
    items.toSorted((a, b) => instantOf(a) - instantOf(b)),
    maker,
  )
}

export function tickItem(
  definition: Definition,
  scheduledForMs: number,
  runAtMs: number,
  nowMs: number,
  maker: Maker,
): UntaggedItem {
  // What is caught up is due at once.
  const tick = { scheduledForMs, runAtMs: runAtMs > nowMs ? runAtMs : null }
  return definitionItem(definition, { payload: definition.payload, ...tick }, maker)
}

export function* readLoads(definitionIds: readonly string[]): Work<Map<string, DefinitionLoad>> {
  const rows = yield* each(
    sql.readLoad,
    definitionIds.map((id) => ({ id })),
  )
  return new Map(rows.map(({ id, active, waiting }) => [id, { active, waiting }]))
}

/** Only `skip` minds whose job it is. */
function* markBackfilled(held: readonly { definition: Definition }[], loads: Map<string, DefinitionLoad>): Work<void> {
  const asked = held.filter(({ definition: { id, schedule } }) => schedule?.overlap === 'skip' && loads.get(id)?.active)
  const rows = yield* each(
    sql.readBackfilledOnly,
    asked.map(({ definition: { id } }) => ({ id })),
  )
  for (const row of rows) {
    const load = loads.get(row.id)
    if (load !== undefined) load.backfilledOnly = true
  }
}

const lastOf = ({ make, skip, skipAll }: Plan, dueAtMs: number) =>
  Math.max(dueAtMs, ...make, ...skip, skipAll?.untilMs ?? 0)

const nameOf = (definitionId: string, tickMs: number) => `${definitionId}/${tickMs}`

function missing(): never {
  throw new Error('What was asked for has an answer')
}
