import { toContentShape } from '../../contract/definitions.ts'
import type { Problem } from '../../core/json/problem.ts'
import { LAST_ID } from '../../core/run/job.ts'
import type { Definition, DefinitionContent } from '../../core/schedule/definition.ts'
import { isZone, nextTick, type Schedule, scheduleProblem } from '../../core/schedule/schedule.ts'
import { lastTicks } from '../../core/schedule/ticks.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { each, exactlyOne, now, one, query, type Values, type Work } from '../statement.ts'
import * as sql from './definitions.sql.ts'
import { insertOccurrences } from './ticks.sql.ts'

type Created = { kind: 'created'; definition: Definition } | { kind: 'taken' } | { kind: 'problem'; problem: Problem }

type Updated =
  | { kind: 'updated'; definition: Definition }
  | { kind: 'missing' }
  | { kind: 'conflict'; version: number }
  | { kind: 'problem'; problem: Problem }

/** The most ticks of a pause that are looked up in the ledger: a backfill makes no more. */
const LEDGER_MAX = 10_000

/** Also returns the store's time, to compute the next ticks. */
export function findDefinitionNow(name: string): Command<{ definition: Definition | null; nowMs: number }> {
  return command('find_definition_now', function* work() {
    const row = yield* one(sql.findDefinition, { name })
    return { definition: row === undefined ? null : toDefinition(row), nowMs: yield* now() }
  })
}

export function findDefinition(name: string): Command<Definition | null> {
  return command('find_definition', function* work(): Work<Definition | null> {
    const row = yield* one(sql.findDefinition, { name })
    return row === undefined ? null : toDefinition(row)
  })
}

/** Newest first. */
export function listDefinitions(limit: number, after: string | null): Command<Listed<Definition>> {
  return command('list_definitions', function* work(): Work<Listed<Definition>> {
    const found = (yield* query(sql.listDefinitions, { limit: limit + 1, after: after ?? LAST_ID })).map(toDefinition)
    return pageOf(found, limit, ({ id }) => id)
  })
}

export function createDefinition(
  made: { id: string; name: string; userId: string; content: DefinitionContent },
  by: By,
): Command<Created> {
  return command('create_definition', function* work(): Work<Created> {
    const { id, name, userId, content } = made
    const nowMs = yield* now()
    const problem = content.schedule === null ? null : scheduleProblem(content.schedule, nowMs)
    if (problem !== null) return { kind: 'problem', problem }
    const next = content.schedule === null ? null : nextTick(content.schedule, nowMs)
    const row = yield* one(sql.insertDefinition, { id, name, user_id: userId, ...columns(content, next) })
    if (row !== undefined) {
      const definition = toDefinition(row)
      yield* record(by, 'definition.create', name, null, describe(definition))
      return { kind: 'created', definition }
    }
    // An earlier try of this command may have been committed without our knowledge.
    const found = yield* one(sql.findDefinition, { name })
    return found?.id === id ? { kind: 'created', definition: toDefinition(found) } : { kind: 'taken' }
  })
}

/** @param version the version to change; null: any */
export function updateDefinition(
  name: string,
  version: number | null,
  content: DefinitionContent,
  by: By,
): Command<Updated> {
  return command('update_definition', function* work(again): Work<Updated> {
    const row = yield* one(sql.lockDefinition, { name })
    if (row === undefined) return { kind: 'missing' }
    const before = toDefinition(row)
    if (yield* isRecorded(again, by)) return { kind: 'updated', definition: before }
    if (version !== null && version !== before.version) return { kind: 'conflict', version: before.version }
    const nowMs = yield* now()
    const { schedule } = content
    const same = JSON.stringify(schedule) === JSON.stringify(before.schedule)
    // An unchanged schedule is accepted even if it has ended.
    const problem = schedule === null || same ? null : scheduleProblem(schedule, nowMs)
    if (problem !== null) return { kind: 'problem', problem }
    // Without a rule a due tick can no longer be made.
    if (!same && (before.pausedAtMs !== null || schedule === null)) yield* skipOpen(before, nowMs)
    const next = same ? before.nextTickAtMs : nextAfterChange(before, schedule, nowMs)
    const seen = { id: before.id, version: before.version }
    const updated = yield* one(sql.updateDefinition, { ...seen, ...columns(content, next) })
    if (updated === undefined) return { kind: 'conflict', version: before.version }
    const definition = toDefinition(updated)
    yield* record(by, 'definition.update', name, describe(before), describe(definition))
    return { kind: 'updated', definition }
  })
}

/** A tick that is due already is still made, because the change came later. Later ticks follow the new rule. */
function nextAfterChange(before: Definition, schedule: Schedule | null, nowMs: number): number | null {
  if (schedule === null) return null
  const { nextTickAtMs, pausedAtMs } = before
  return pausedAtMs === null && nextTickAtMs !== null && nextTickAtMs <= nowMs
    ? nextTickAtMs
    : nextTick(schedule, nowMs)
}

/** Returns null if there is none. A paused definition stays as it is. */
export function pauseDefinition(name: string, by: By): Command<Definition | null> {
  return command('pause_definition', function* work(again): Work<Definition | null> {
    const row = yield* one(sql.lockDefinition, { name })
    if (row === undefined) return null
    const before = toDefinition(row)
    if (yield* isRecorded(again, by)) return before
    const paused = yield* one(sql.pauseDefinition, { id: before.id, version: before.version })
    if (paused === undefined) return before
    const definition = toDefinition(paused)
    yield* record(by, 'definition.pause', name, { paused: false }, { paused: true })
    return definition
  })
}

/** Returns null if there is none. A definition that is not paused stays as it is. */
export function resumeDefinition(name: string, by: By): Command<Definition | null> {
  return command('resume_definition', function* work(again): Work<Definition | null> {
    const row = yield* one(sql.lockDefinition, { name })
    if (row === undefined) return null
    const before = toDefinition(row)
    if (before.pausedAtMs === null || (yield* isRecorded(again, by))) return before
    const nowMs = yield* now()
    yield* skipOpen(before, nowMs)
    const next = nextAfterChange(before, before.schedule, nowMs)
    const seen = { id: before.id, version: before.version }
    const definition = toDefinition(yield* exactlyOne(sql.resumeDefinition, { ...seen, next_tick_at: next }))
    yield* record(by, 'definition.resume', name, { paused: true }, { paused: false })
    return definition
  })
}

/**
 * Records the ticks up to now that will make no job, because of a pause or a deletion, as one entry from the first to
 * the last. It begins after ticks that a backfill has made meanwhile.
 */
function* skipOpen({ id, schedule, nextTickAtMs, pausedAtMs }: Definition, nowMs: number): Work<void> {
  if (schedule === null || nextTickAtMs === null || nextTickAtMs > nowMs) return
  // If this node does not know the time zone, only the next tick is known.
  const readable = isZone(schedule.timeZone)
  const [last = nextTickAtMs] = readable ? lastTicks(schedule, nextTickAtMs, nowMs + 1, 1) : []
  const rows = yield* query(sql.readTicks, { definition_id: id, first: nextTickAtMs, last, max: LEDGER_MAX })
  const made = new Set(rows.map((row) => row.scheduled_for))
  let first: number | null = nextTickAtMs
  while (first !== null && made.has(first)) first = readable ? nextTick(schedule, first) : null
  if (first === null || first > last) return
  yield* each(insertOccurrences, [
    {
      definition_id: id,
      scheduled_for: first,
      outcome: 'skipped',
      job_id: null,
      reason: pausedAtMs === null ? 'deleted' : 'paused',
      run_at: null,
      skipped_until: last > first ? last : null,
      origin: 'schedule',
    },
  ])
}

/** Returns false if there is none. Its jobs and its ledger stay. */
export function deleteDefinition(name: string, by: By): Command<boolean> {
  return command('delete_definition', function* work(again): Work<boolean> {
    const row = yield* one(sql.lockDefinition, { name })
    if (yield* isRecorded(again, by)) return true
    if (row === undefined) return false
    const before = toDefinition(row)
    yield* skipOpen(before, yield* now())
    yield* query(sql.deleteDefinition, { id: before.id, version: before.version })
    yield* query(sql.dropWaitingTicks, { definition_id: before.id })
    yield* record(by, 'definition.delete', name, describe(before), null)
    return true
  })
}

function columns(content: DefinitionContent, nextTickAtMs: number | null) {
  const { kind, queue, payload, policy, priority, labels, domain, stages, seqScope, schedule, on } = content
  const json = (value: unknown) => (value === null ? null : JSON.stringify(value))
  return {
    kind,
    queue,
    payload,
    policy: JSON.stringify(policy),
    priority,
    labels: json(labels),
    domain,
    stages: json(stages),
    seq_scope: seqScope,
    schedule: json(schedule),
    topic: on?.topic ?? null,
    on_trigger: json(on),
    next_tick_at: nextTickAtMs,
  }
}

export function toDefinition(row: Values<typeof sql.DEFINITION_ROW>): Definition {
  return {
    id: row.id,
    name: row.name,
    userId: row.user_id,
    kind: row.kind,
    queue: row.queue,
    payload: row.payload,
    policy: row.policy,
    priority: row.priority,
    labels: row.labels,
    domain: row.domain,
    stages: row.stages,
    seqScope: row.seq_scope,
    schedule: row.schedule,
    on: row.on_trigger,
    pausedAtMs: row.paused_at,
    version: row.version,
    nextTickAtMs: row.next_tick_at,
    lastTickAtMs: row.last_tick_at,
    createdAtMs: row.created_at,
    updatedAtMs: row.updated_at,
  }
}

/** The part of a definition that is stored in the audit. */
function describe(definition: Definition): Record<string, unknown> {
  return { definition_id: definition.id, version: definition.version, ...toContentShape(definition) }
}
