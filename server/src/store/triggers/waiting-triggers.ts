import { matches } from '../../core/schedule/trigger.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import type { Maker } from '../schedules/definition-jobs.ts'
import { toDefinition } from '../schedules/definitions.ts'
import { each, query, type RowOf, type Work } from '../statement.ts'
import type { Term } from '../system/leadership.ts'
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
    const rows = yield* query(sql.readWaitingDefinitions, { after: afterDefinitionId, max })
    const share = Math.max(1, Math.floor(max / Math.max(1, rows.length)))
    const first = yield* each(
      sql.readFirstWaiting,
      rows.map(({ id }) => ({ id, max: share })),
    )
    const waiting = Map.groupBy(first, (row) => row.definition_id)
    return rows.map(({ id, user_id, payload_chars }) => {
      const triggers = (waiting.get(id) ?? []).map(({ trigger_id, data_chars }) => ({
        triggerId: trigger_id,
        chars: data_chars + (payload_chars ?? 0),
      }))
      return { definitionId: id, userId: user_id, triggers }
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
      (yield* query(sql.shareUnpaused, { ...term, ids })).map((row) => [row.id, toDefinition(row)]),
    )
    const pairs = waiting.flatMap(({ definitionId, triggers }) =>
      definitions.has(definitionId)
        ? triggers.map(({ triggerId }) => ({ definition_id: definitionId, trigger_id: triggerId }))
        : [],
    )
    const locked = (yield* each(sql.lockWaiting, pairs)).toSorted(byArrival)
    const draft = drafter(payloadBytesMax, maker)
    const drafts = locked.map((row) => {
      const definition = definitions.get(row.definition_id)
      if (definition === undefined) throw new Error('A trigger was locked without its definition')
      const trigger = { id: row.trigger_id, data: row.data }
      if (hasRule(definition) && matches(definition.on, row.topic, trigger.data)) {
        return draft(definition, trigger, false)
      }
      const made: Made = { ...NOTHING, definitionId: definition.id, triggerId: trigger.id, reason: 'changed' }
      return { made, item: null }
    })
    const made = yield* submitDrafts(drafts, maker)
    yield* changeOutcomes(made.map((one, i) => ({ ...one, seen: locked[i]?.outcome ?? one.outcome })))
    const over = made.filter((one) => !isWaiting(one))
    yield* settle(over.map(({ triggerId }) => triggerId))
    return over
  })
}

const NOTHING = { outcome: 'skipped', field: null, jobId: null, wakes: null } as const

/** Skips what waits for a definition that was deleted. */
export function dropWaitingTriggers(term: Term, definitionId: string, max: number): Command<number> {
  return command('drop_waiting_triggers', function* work(): Work<number> {
    const dropped = yield* query(sql.dropOrphaned, { ...term, definition_id: definitionId, max })
    yield* settle(dropped.map(({ trigger_id }) => trigger_id))
    return dropped.length
  })
}

function* settle(triggerIds: readonly string[]): Work<void> {
  yield* each(
    sql.settleTriggers,
    [...new Set(triggerIds)].map((id) => ({ id })),
  )
}

type Waiting = RowOf<typeof sql.lockWaiting>

/** One array for all definitions: the first trigger of all has the first free slot. */
function byArrival(a: Waiting, b: Waiting): number {
  return a.triggered_at - b.triggered_at || (a.trigger_id < b.trigger_id ? -1 : 1)
}
