import type { Definition } from '../../core/schedule/definition.ts'
import type { Schedule } from '../../core/schedule/schedule.ts'
import { type DefinitionLoad, jitterMs, type Outcome, type Plan, settleTick } from '../../core/schedule/ticks.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command, commandIn } from '../port.ts'
import { each, now, one, type ParamsOf, query, type RowOf, type Work } from '../statement.ts'
import type { UntaggedItem } from '../submission/submission.ts'
import type { Term } from '../system/term.ts'
import { definitionItem, type MadeJob, type Maker, submitUnkeyed } from './definition-jobs.ts'
import { toDefinition } from './definitions.ts'
import * as sql from './ticks.sql.ts'

/** A definition as it was seen, and the plan for its ticks. */
export interface Planned {
  definition: Pick<Definition, 'id' | 'version' | 'userId'>
  dueAtMs: number
  plan: Plan
}

export interface Tick extends Omit<MadeJob, 'outcome'> {
  definitionId: string
  scheduledForMs: number
  outcome: Outcome
  lateMs: number
}

export interface DueDefinition extends Pick<Definition, 'id' | 'name' | 'version' | 'userId'> {
  schedule: Schedule
  dueAtMs: number
  payloadChars: number
}

interface Due {
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

/** In ms from now; null if there is none. */
export function findNextTick(): Command<number | null> {
  return command('find_next_tick', function* work(): Work<number | null> {
    const next = yield* one(sql.nextTickIn, {})
    return next?.in_ms ?? null
  })
}

/**
 * Writes the ledger, the jobs and the next tick of each definition, in one transaction under the leader's fence. A
 * definition that was paused, changed, deleted or processed meanwhile is left alone. Locks: users, the term,
 * definitions. A wait for a user under the lock of the term would block the leader's renewal.
 */
export function makeTicks(term: Term, planned: readonly Planned[], maker: Maker): Command<Tick[]> {
  const seen = JSON.stringify(
    planned.map(({ definition: { id, version }, dueAtMs }) => ({ id, version, next_tick_at: dueAtMs })),
  )
  const byId = new Map(planned.map((one) => [one.definition.id, one]))
  return commandIn('users', 'make_ticks', function* work(): Work<Tick[]> {
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
  /** Null: the tick makes no job now. */
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
    ready: null,
    lateMs: nowMs - scheduledForMs,
  })
  const skipped = (fromMs: number, skippedUntilMs: number | null): Draft => ({
    tick: { ...base(fromMs), outcome: 'skipped', reason: 'catch_up' },
    item: null,
    runAtMs: null,
    skippedUntilMs,
  })
  let next = load
  const made = plan.make.map((scheduledForMs): Draft => {
    const runAtMs = scheduledForMs + jitterMs(id, scheduledForMs, schedule?.jitterSeconds ?? 0)
    const { outcome, reason, after } = settleTick(schedule?.overlap ?? 'allow', next)
    next = after
    const item = outcome === 'job' ? tickItem(definition, scheduledForMs, runAtMs, nowMs, maker) : null
    const tick = { ...base(scheduledForMs), outcome, reason, jobId: item?.jobId ?? null }
    return { tick, item, runAtMs, skippedUntilMs: null }
  })
  const { skip, skipAll } = plan
  const all = skipAll === null ? [] : [skipped(skipAll.fromMs, skipAll.untilMs)]
  return [...all, ...skip.map((tick) => skipped(tick, null)), ...made]
}

/** A tick that is in the ledger makes no job. A tick that its quota refuses waits. */
function* carryOut(drafts: readonly Draft[], maker: Maker): Work<Tick[]> {
  const inserted = new Set(
    (yield* each(sql.insertOccurrences, drafts.map(occurrenceRow))).map((row) =>
      nameOf(row.definition_id, row.scheduled_for),
    ),
  )
  const ours = drafts.filter(({ tick }) => inserted.has(nameOf(tick.definitionId, tick.scheduledForMs)))
  const made = yield* submitTicks(
    ours.flatMap(({ item }) => item ?? []),
    maker,
  )
  const ticks = ours.map(({ tick, item }) => ({ ...tick, ...(item && made.get(item.jobId)) }))
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

/** `seen` is the tick's outcome in the ledger. */
function changeOf(tick: Tick, seen: Outcome): ParamsOf<typeof sql.changeOccurrences> {
  const { definitionId, scheduledForMs, outcome, jobId, reason } = tick
  return { definition_id: definitionId, scheduled_for: scheduledForMs, seen, outcome, job_id: jobId, reason }
}

/** The earliest tick gets the first free slot. */
export function* submitTicks(items: readonly UntaggedItem[], maker: Maker): Work<Map<string, MadeJob>> {
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
  // A tick that is caught up is due at once.
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

/** Only `skip` distinguishes jobs of backfills. */
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

/** A tick that waits for a quota, or for the job before it. */
interface WaitingTick {
  definitionId: string
  userId: string
  scheduledForMs: number
  payloadChars: number
}

/** Finds the first waiting tick of each definition. */
export function findWaitingTicks(afterDefinitionId: string, max: number): Command<WaitingTick[]> {
  return command('find_waiting_ticks', function* work(): Work<WaitingTick[]> {
    return (yield* query(sql.readWaitingTicks, { after: afterDefinitionId, max })).map((row) => ({
      definitionId: row.definition_id,
      userId: row.user_id,
      scheduledForMs: row.scheduled_for,
      payloadChars: row.payload_chars,
    }))
  })
}

/** Returns the ticks that have become jobs. */
export function tryWaitingTicks(term: Term, waiting: readonly WaitingTick[], maker: Maker): Command<Tick[]> {
  const asked = JSON.stringify(
    waiting.map(({ definitionId, scheduledForMs }) => ({ definition_id: definitionId, scheduled_for: scheduledForMs })),
  )
  return commandIn('users', 'try_waiting_ticks', function* work(): Work<Tick[]> {
    yield* lockUsersOf(waiting.map(({ userId }) => userId))
    const locked = yield* query(sql.lockWaitingTicks, { ...term, ticks: asked })
    const loads = yield* readLoads(locked.map(({ id }) => id))
    const free = locked.filter(
      ({ id, schedule }) => (schedule?.overlap ?? 'allow') === 'allow' || !loads.get(id)?.active,
    )
    const drafts = free.map((row) => waitingDraft(row, maker))
    const made = yield* submitTicks(
      drafts.map(({ item }) => item),
      maker,
    )
    const ticks = drafts.map(({ tick, item }) => ({ ...tick, ...(made.get(item.jobId) ?? missing()) }))
    yield* each(
      sql.changeOccurrences,
      ticks.flatMap((tick, i) => {
        const seen = drafts[i]?.seen ?? missing()
        return seen === tick.outcome ? [] : [changeOf(tick, seen)]
      }),
    )
    return ticks.filter(({ outcome }) => outcome === 'job')
  })
}

interface WaitingDraft {
  tick: Omit<Tick, 'outcome'>
  item: UntaggedItem
  seen: Outcome
}

function waitingDraft(row: RowOf<typeof sql.lockWaitingTicks>, maker: Maker): WaitingDraft {
  const definition = toDefinition(row)
  const { scheduled_for: scheduledForMs, now: nowMs } = row
  const item = tickItem(definition, scheduledForMs, row.run_at ?? nowMs, nowMs, maker)
  const lateMs = nowMs - scheduledForMs
  const tick = { definitionId: definition.id, scheduledForMs, reason: null, jobId: null, ready: null, lateMs }
  return { tick, item, seen: row.outcome }
}

function missing(): never {
  throw new Error('What was asked for has an answer')
}
