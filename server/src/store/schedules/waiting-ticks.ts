import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { each, integer, integerOrNull, query, type Row, text, type Work } from '../statement.ts'
import type { UntaggedItem } from '../submission/submission.ts'
import { fence, type Term } from '../system/leadership.ts'
import { type Maker, resultOf } from './definition-jobs.ts'
import { toDefinition } from './definitions.ts'
import * as sql from './ticks.sql.ts'
import { readLoads, submitTicks, type Tick, tickItem } from './ticks.ts'

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
    return (yield* query(sql.readWaitingTicks, afterDefinitionId, max)).map((row) => ({
      definitionId: text(row, 'definition_id'),
      userId: text(row, 'user_id'),
      scheduledForMs: integer(row, 'scheduled_for'),
      payloadChars: integer(row, 'payload_chars'),
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
    const locked = yield* query(sql.lockWaitingTicks, ...fence(term), asked)
    const loads = yield* readLoads(locked.map((row) => text(row, 'id')))
    const free = locked.filter((row) => {
      const { schedule } = toDefinition(row)
      return (schedule?.overlap ?? 'allow') === 'allow' || !loads.get(text(row, 'id'))?.active
    })
    const drafts = free.map((row) => waitingDraft(row, maker))
    const outcomes = yield* submitTicks(
      drafts.map(({ item }) => item),
      maker,
    )
    const ticks = drafts.map(({ tick, item }) => ({ ...tick, ...resultOf(outcomes.get(item.jobId) ?? missing()) }))
    yield* each(
      sql.changeOccurrences,
      ticks.flatMap(({ definitionId, scheduledForMs, outcome, jobId, reason }, i) => {
        const seen = drafts[i]?.seen ?? missing()
        return seen === outcome ? [] : [[definitionId, scheduledForMs, seen, outcome, jobId, reason]]
      }),
    )
    return ticks.filter(({ outcome }) => outcome === 'job')
  })
}

function waitingDraft(row: Row, maker: Maker): { tick: Omit<Tick, 'outcome'>; item: UntaggedItem; seen: string } {
  const definition = toDefinition(row)
  const [scheduledForMs, nowMs] = [integer(row, 'scheduled_for'), integer(row, 'now')]
  const item = tickItem(definition, scheduledForMs, integerOrNull(row, 'run_at') ?? nowMs, nowMs, maker)
  const lateMs = nowMs - scheduledForMs
  const tick = { definitionId: definition.id, scheduledForMs, reason: null, jobId: null, wakes: null, lateMs }
  return { tick, item, seen: text(row, 'outcome') }
}

function missing(): never {
  throw new Error('What was asked for has an answer')
}
