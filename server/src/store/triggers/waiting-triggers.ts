import { matches } from '../../core/schedule/trigger.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import type { Maker } from '../schedules/definition-jobs.ts'
import { toDefinition } from '../schedules/definitions.ts'
import { each, integer, integerOrNull, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import { fence, type Term } from '../system/leadership.ts'
import { changeOutcomes, drafter, hasRule, isWaiting, type Made, submitDrafts } from './process-triggers.ts'
import * as sql from './triggers.sql.ts'

/** A definition that is not paused and has triggers that wait. */
export interface WaitingDefinition {
  definitionId: string
  /** Null: it was deleted. */
  userId: string | null
  /** The first of them, in the order of their arrival. */
  triggers: { triggerId: string; chars: number }[]
}

/** Each definition has its share of `max`. */
export function findWaitingTriggers(afterDefinitionId: string, max: number): Command<WaitingDefinition[]> {
  return command('find_waiting_triggers', function* work(): Work<WaitingDefinition[]> {
    const rows = yield* query(sql.readWaitingDefinitions, afterDefinitionId, max)
    const share = Math.max(1, Math.floor(max / Math.max(1, rows.length)))
    const first = yield* each(
      sql.readFirstWaiting,
      rows.map((row) => [text(row, 'id'), share]),
    )
    const waiting = Map.groupBy(first, (row) => text(row, 'definition_id'))
    return rows.map((row) => {
      const [definitionId, payloadChars] = [text(row, 'id'), integerOrNull(row, 'payload_chars') ?? 0]
      const triggers = (waiting.get(definitionId) ?? []).map((one) => ({
        triggerId: text(one, 'trigger_id'),
        chars: integer(one, 'data_chars') + payloadChars,
      }))
      return { definitionId, userId: textOrNull(row, 'user_id'), triggers }
    })
  })
}

/**
 * Decides again about triggers that wait, by their definitions as they are now. Answers with those that wait no longer. A
 * definition that is paused or gone by now is left alone.
 */
export function tryWaitingTriggers(
  term: Term,
  waiting: readonly WaitingDefinition[],
  payloadBytesMax: number,
  maker: Maker,
): Command<Made[]> {
  const ids = JSON.stringify(waiting.map(({ definitionId }) => definitionId))
  return command('try_waiting_triggers', function* work(): Work<Made[]> {
    yield* lockUsersOf(waiting.flatMap(({ userId }) => userId ?? []))
    const definitions = new Map(
      (yield* query(sql.shareUnpaused, ...fence(term), ids)).map((row) => [text(row, 'id'), toDefinition(row)]),
    )
    const pairs = waiting.flatMap(({ definitionId, triggers }) =>
      definitions.has(definitionId) ? triggers.map(({ triggerId }) => [definitionId, triggerId]) : [],
    )
    const locked = (yield* each(sql.lockWaiting, pairs)).toSorted(byArrival)
    const draft = drafter(payloadBytesMax, maker)
    const drafts = locked.map((row) => {
      const definition = definitions.get(text(row, 'definition_id'))
      if (definition === undefined) throw new Error('It was locked with its definition')
      const trigger = { id: text(row, 'trigger_id'), data: JSON.parse(text(row, 'data')) as unknown }
      if (hasRule(definition) && matches(definition.on, text(row, 'topic'), trigger.data)) {
        return draft(definition, trigger, false)
      }
      const made: Made = { ...NOTHING, definitionId: definition.id, triggerId: trigger.id, reason: 'changed' }
      return { made, item: null }
    })
    const made = yield* submitDrafts(drafts, maker)
    yield* changeOutcomes(made.map((one, i) => ({ ...one, seen: text(locked[i], 'outcome') })))
    const over = made.filter((one) => !isWaiting(one))
    yield* settle(over.map(({ triggerId }) => triggerId))
    return over
  })
}

const NOTHING = { outcome: 'skipped', field: null, jobId: null, wakes: null } as const

/** Skips what waits for a definition that was deleted. */
export function dropWaitingTriggers(term: Term, definitionId: string, max: number): Command<number> {
  return command('drop_waiting_triggers', function* work(): Work<number> {
    const dropped = yield* query(sql.dropOrphaned, ...fence(term), definitionId, max)
    yield* settle(dropped.map((row) => text(row, 'trigger_id')))
    return dropped.length
  })
}

function* settle(triggerIds: readonly string[]): Work<void> {
  yield* each(
    sql.settleTriggers,
    [...new Set(triggerIds)].map((id) => [id]),
  )
}

/** One array for all definitions: the first trigger of all has the first free slot. */
function byArrival(a: Row, b: Row): number {
  return (
    integer(a, 'triggered_at') - integer(b, 'triggered_at') || (text(a, 'trigger_id') < text(b, 'trigger_id') ? -1 : 1)
  )
}
