import type { Outcome } from '../../core/schedule/ticks.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { each, query, type RowOf, type Work } from '../statement.ts'
import type { UntaggedItem } from '../submission/submission.ts'
import type { Term } from '../system/leadership.ts'
import { type Maker, resultOf } from './definition-jobs.ts'
import { toDefinition } from './definitions.ts'
import * as sql from './ticks.sql.ts'
import { changeOf, readLoads, submitTicks, type Tick, tickItem } from './ticks.ts'

/** A tick that met a full quota, or the job before it. */
export interface WaitingTick {
  definitionId: string
  userId: string
  scheduledForMs: number
  payloadChars: number
}

/** Of each definition the first of its ticks that wait. */
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

/** Answers with those that have become jobs. */
export function tryWaitingTicks(term: Term, waiting: readonly WaitingTick[], maker: Maker): Command<Tick[]> {
  const asked = JSON.stringify(
    waiting.map(({ definitionId, scheduledForMs }) => ({ definition_id: definitionId, scheduled_for: scheduledForMs })),
  )
  return command('try_waiting_ticks', function* work(): Work<Tick[]> {
    yield* lockUsersOf(waiting.map(({ userId }) => userId))
    const locked = yield* query(sql.lockWaitingTicks, { ...term, ticks: asked })
    const loads = yield* readLoads(locked.map(({ id }) => id))
    const free = locked.filter(
      ({ id, schedule }) => (schedule?.overlap ?? 'allow') === 'allow' || !loads.get(id)?.active,
    )
    const drafts = free.map((row) => waitingDraft(row, maker))
    const outcomes = yield* submitTicks(
      drafts.map(({ item }) => item),
      maker,
    )
    const ticks = drafts.map(({ tick, item }) => ({ ...tick, ...resultOf(outcomes.get(item.jobId) ?? missing()) }))
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
  const tick = { definitionId: definition.id, scheduledForMs, reason: null, jobId: null, wakes: null, lateMs }
  return { tick, item, seen: row.outcome }
}

function missing(): never {
  throw new Error('What was asked for has an answer')
}
