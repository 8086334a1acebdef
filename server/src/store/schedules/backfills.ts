import { BACKFILL_STATES, type BackfillState } from '@ichido/sdk/protocol'
import { stored } from '../../core/json/stored-json.ts'
import { LAST_ID } from '../../core/run/job.ts'
import type { Definition } from '../../core/schedule/definition.ts'
import { isSchedule, type Schedule } from '../../core/schedule/schedule.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command, commandIn, type Listed, pageOf } from '../port.ts'
import { each, exactlyOne, one, query, statement, type Values, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import type { Maker } from './definition-jobs.ts'
import { readDefinition } from './definitions.sql.ts'
import { toDefinition } from './definitions.ts'
import { readKnown } from './occurrences.ts'
import { insertOccurrences } from './ticks.sql.ts'
import { readLoads, submitTicks, type Tick, tickItem } from './ticks.ts'

const state = { passOn: BACKFILL_STATES } as const

const BACKFILL_ROW = {
  id: 'text',
  definition_id: 'text',
  actor: 'text',
  from_at: 'integer',
  to_at: 'integer',
  at: 'integer',
  schedule: { json: stored('schedule', isSchedule) },
  state,
  version: 'integer',
  matched: 'integer',
  made: 'integer',
  made_before: 'integer',
  skipped: 'integer',
  began_at: 'integer',
  ended_at: 'integer?',
} as const

const BACKFILL = Object.keys(BACKFILL_ROW).join(', ')

/** `matched`: the number of ticks in the range. The schedule is JSON. */
const insertBackfill = statement('insert_backfill', {
  params: {
    id: 'text',
    definition_id: 'text',
    actor: 'text',
    from_at: 'integer',
    to_at: 'integer',
    schedule: 'text',
    matched: 'integer',
  },
  row: {},
  sql: `INSERT INTO ichido.backfills (${BACKFILL})
    VALUES ($id, $definition_id, $actor, $from_at, $to_at, $from_at, $schedule, 'running', 1, $matched, 0, 0, 0, now_ms(), NULL)
    ON CONFLICT (id) DO NOTHING`,
})

const readBackfill = statement('read_backfill', {
  params: { id: 'text' },
  row: BACKFILL_ROW,
  sql: `SELECT ${BACKFILL} FROM ichido.backfills WHERE id = $id`,
})

/** Newest first. The page before ended with the id `after`. */
const selectBackfills = statement('list_backfills', {
  params: { definition_id: 'text', limit: 'integer', after: 'text' },
  row: BACKFILL_ROW,
  sql: `SELECT ${BACKFILL} FROM ichido.backfills WHERE definition_id = $definition_id AND id < $after
    ORDER BY id DESC LIMIT $limit`,
})

/** Oldest first, from the id `after` on. */
const readRunningBackfills = statement('read_running_backfills', {
  params: { max: 'integer', after: 'text' },
  row: BACKFILL_ROW,
  sql: `SELECT ${BACKFILL} FROM ichido.backfills WHERE state = 'running' AND id > $after ORDER BY id LIMIT $max`,
})

/** Locks a definition that still has this version. Its ticks wait meanwhile. */
const lockDefinition = statement('lock_definition_version', {
  params: { id: 'text', version: 'integer' },
  row: { now: 'integer' },
  postgres: 'SELECT now_ms() AS now FROM ichido.job_definitions WHERE id = $id AND version = $version FOR UPDATE',
  sqlite: 'SELECT now_ms() AS now FROM ichido.job_definitions WHERE id = $id AND version = $version',
})

/** Guards the version that was seen: if two leaders continue a backfill at once, one takes this step. */
const takeBackfillStep = statement('take_backfill_step', {
  params: { ...TERM, id: 'text', version: 'integer' },
  row: { id: 'text' },
  postgres: `${LED}
    UPDATE ichido.backfills b SET version = b.version + 1 FROM l
    WHERE b.id = $id AND b.version = $version AND b.state = 'running' RETURNING b.id`,
  sqlite: `UPDATE ichido.backfills SET version = version + 1
    WHERE id = $id AND version = $version AND state = 'running' AND ${LED_SQLITE} RETURNING id`,
})

/** `at`: the instant to continue from. Adds the ticks that this step made, found made, and found skipped. */
const recordBackfillStep = statement('record_backfill_step', {
  params: { id: 'text', at: 'integer', made: 'integer', made_before: 'integer', skipped: 'integer' },
  row: {},
  sql: `UPDATE ichido.backfills SET at = $at, made = made + $made, made_before = made_before + $made_before,
      skipped = skipped + $skipped
    WHERE id = $id`,
})

const endBackfill = statement('end_backfill', {
  params: { id: 'text', state },
  row: BACKFILL_ROW,
  sql: `UPDATE ichido.backfills SET state = $state, version = version + 1, ended_at = now_ms()
    WHERE id = $id AND state = 'running' RETURNING ${BACKFILL}`,
})

/** A backfill makes the ticks of a past range one after the other. It can be watched and aborted as a whole. */
export interface Backfill {
  backfillId: string
  definitionId: string
  actor: string
  fromMs: number
  /** Exclusive. */
  toMs: number
  /** The place to continue from. */
  atMs: number
  /** The schedule when the backfill began, so that the ticks of two rules are not mixed. */
  schedule: Schedule
  state: BackfillState
  version: number
  matched: number
  made: number
  /** Ticks whose job was made before, or waits. */
  madeBefore: number
  /** Ticks that were skipped before. */
  skipped: number
  beganAtMs: number
  endedAtMs: number | null
}

interface NewBackfill {
  backfillId: string
  definition: Pick<Definition, 'id' | 'name'>
  fromMs: number
  toMs: number
  schedule: Schedule
  matched: number
}

export function beginBackfill(item: NewBackfill, by: By): Command<Backfill> {
  return command('begin_backfill', function* work(again): Work<Backfill> {
    const { backfillId, definition, fromMs, toMs, schedule, matched } = item
    if (!(yield* isRecorded(again, by))) {
      yield* query(insertBackfill, {
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
    return toBackfill(yield* exactlyOne(readBackfill, { id: backfillId }))
  })
}

export function findBackfill(backfillId: string): Command<Backfill | null> {
  return command('find_backfill', function* work(): Work<Backfill | null> {
    const row = yield* one(readBackfill, { id: backfillId })
    return row === undefined ? null : toBackfill(row)
  })
}

/** Newest first. */
export function listBackfills(definitionId: string, limit: number, after: string | null): Command<Listed<Backfill>> {
  return command('list_backfills', function* work(): Work<Listed<Backfill>> {
    const page = { definition_id: definitionId, limit: limit + 1, after: after ?? LAST_ID }
    const found = (yield* query(selectBackfills, page)).map(toBackfill)
    return pageOf(found, limit, ({ backfillId }) => backfillId)
  })
}

/** Returns null if the backfill has ended. It waits for a running step, and no step follows. */
export function abortBackfill(backfillId: string, name: string, by: By): Command<Backfill | null> {
  return command('abort_backfill', function* work(): Work<Backfill | null> {
    const row = yield* one(endBackfill, { id: backfillId, state: 'aborted' })
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
    for (const row of yield* query(readRunningBackfills, { max, after: afterId })) {
      const found = yield* one(readDefinition, { id: row.definition_id })
      running.push({ backfill: toBackfill(row), definition: found === undefined ? null : toDefinition(found) })
    }
    return running
  })
}

interface BackfillStep {
  /** The backfill as it was seen. */
  backfill: Backfill
  /** Null: it was deleted. */
  definition: Definition | null
  /** The next ticks. */
  ticks: readonly number[]
}

interface BackfillProgress {
  made: Tick[]
  /** True if it made progress and has more to do. */
  goesOn: boolean
}

/**
 * Takes one bounded step, and stores its place in the same transaction. Ticks in the ledger are left alone. It stops at
 * a full quota, and tries again later. Jobs that must not overlap are made one at a time. Locks: the user, the term,
 * the backfill, its definition.
 */
export function stepBackfill(term: Term, { backfill, definition, ticks }: BackfillStep, maker: Maker) {
  const { backfillId } = backfill
  return commandIn('users', 'backfill', function* work(): Work<BackfillProgress> {
    if (definition !== null) yield* lockUsersOf([definition.userId])
    const taken = yield* one(takeBackfillStep, { ...term, id: backfillId, version: backfill.version })
    if (taken === undefined) return { made: [], goesOn: false }
    if (definition === null || ticks.length === 0) {
      yield* query(endBackfill, { id: backfillId, state: definition === null ? 'aborted' : 'done' })
      return { made: [], goesOn: false }
    }
    const locked = yield* one(lockDefinition, { id: definition.id, version: definition.version })
    // The definition has changed, and perhaps its jobs, too.
    if (locked === undefined) return { made: [], goesOn: true }
    const overlap = (definition.schedule ?? backfill.schedule).overlap
    const { made, known, dealtWith } = yield* makeSome({ definition, overlap, ticks }, locked.now, maker)
    const last = dealtWith.at(-1)
    if (last === undefined) return { made, goesOn: false }
    const skipped = dealtWith.filter((tick) => known.get(tick) === 'skipped').length
    const counts = { made: made.length, made_before: dealtWith.length - made.length - skipped, skipped }
    yield* query(recordBackfillStep, { id: backfillId, at: last + 1, ...counts })
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
  const jobs = yield* submitTicks(items, maker)
  const made = items.flatMap(({ jobId }, i): Tick[] => {
    const job = jobs.get(jobId)
    return job?.outcome === 'job' ? [{ definitionId: id, scheduledForMs: fresh[i] ?? 0, ...job, lateMs: 0 }] : []
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

function toBackfill(row: Values<typeof BACKFILL_ROW>): Backfill {
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
