import {
  IchidoError,
  type Page,
  type RecordedTriggerShape,
  TRIGGER_DATA_BYTES_MAX,
  type TriggerDetail,
  type TriggerEntryShape,
  type TriggerOutcome,
  type TriggerOutcomeShape,
  type TriggerRequest,
  type TriggerShape,
  type TriggerState,
} from '@ichido/sdk/protocol'
import { type Caller, can, visibleUser } from '../../core/limits/roles.ts'
import { findDefinition } from '../../store/schedules/definitions.ts'
import { integer, integerOrNull, type Row, text, textOrNull } from '../../store/statement.ts'
import {
  findTrigger,
  listTriggers,
  readTriggerCounts,
  readTriggerLedger,
  type TriggerCounts,
  type TriggerRows,
} from '../../store/triggers/list-triggers.ts'
import { recordTriggers } from '../../store/triggers/record-triggers.ts'
import type { Deps } from '../deps.ts'
import { iso, isoOrNull } from '../iso.ts'
import { notFound, requireId } from '../not-found.ts'

export type { TriggerCounts } from '../../store/triggers/list-triggers.ts'

export interface TriggerQuery {
  topic: string | null
  /** A definition's name. */
  definition: string | null
  state: TriggerState | null
}

export interface TriggerService {
  /**
   * Stores all of them, or none. Each answer is that of the first trigger with its dedupe key. `fieldOf` names the field of an
   * item, for whoever is refused.
   */
  record(
    caller: Caller,
    items: readonly TriggerRequest[],
    fieldOf?: (item: number, field: string) => string,
  ): Promise<RecordedTriggerShape[]>
  list(caller: Caller, query: TriggerQuery, limit: number, after: string | null): Promise<Page<TriggerShape>>
  get(caller: Caller, triggerId: string): Promise<TriggerDetail>
  /** What became of the triggers of a definition, newest first. */
  ledger(definition: string, limit: number, after: string | null): Promise<Page<TriggerEntryShape>>
  /** For metrics. */
  counts(): Promise<TriggerCounts>
}

export function createTriggerService({ world, store, bus, meter }: Deps): TriggerService {
  /** `own`: the user whose definitions alone may be seen. */
  async function definitionIdOf(name: string, own: string | null): Promise<string> {
    const found = await store.read(findDefinition(name))
    if (found === null || (own !== null && found.userId !== own)) throw notFound('definition', name)
    return found.id
  }

  return {
    async record(caller, items, fieldOf = (item, field) => `triggers.${item}.${field}`) {
      const operates = can(caller, 'operate')
      // Of triggers that come in one millisecond, the one with the smaller id came first.
      const ids = items.map(() => world.uuid()).sort()
      const recorded = await store.write(
        recordTriggers(
          items.map(({ topic, dedupe_key: dedupeKey, data }, i) => ({
            triggerId: ids[i] ?? world.uuid(),
            userId: caller.userId,
            operates,
            topic,
            dedupeKey,
            data: dataText(data, fieldOf(i, 'data')),
          })),
        ),
      )
      for (const { duplicate } of recorded) meter.triggered(duplicate ? 'duplicate' : 'recorded')
      if (recorded.some(({ duplicate }) => !duplicate)) bus.wake(['triggers'])
      return recorded.map(({ triggerId, topic, dedupeKey, createdAtMs, duplicate }) => ({
        trigger_id: triggerId,
        topic,
        dedupe_key: dedupeKey,
        created_at: iso(createdAtMs),
        duplicate,
      }))
    },

    async list(caller, { topic, definition, state }, limit, after) {
      const own = visibleUser(caller)
      const definitionId = definition === null ? null : await definitionIdOf(definition, own)
      const filter = { userId: own, topic, definitionId, state }
      const { rows, next } = await store.read(listTriggers(filter, limit, after))
      return { data: rows.map(render), next_cursor: next }
    },

    async get(caller, triggerId) {
      requireId('trigger', triggerId)
      const found = await store.read(findTrigger(triggerId))
      const own = visibleUser(caller)
      if (found === null || (own !== null && text(found.trigger, 'user_id') !== own)) {
        throw notFound('trigger', triggerId)
      }
      return { ...render(found), data: JSON.parse(text(found.trigger, 'data')) as unknown }
    },

    async ledger(name, limit, after) {
      const { rows, next } = await store.read(readTriggerLedger(await definitionIdOf(name, null), limit, after))
      return { data: rows.map(renderEntry), next_cursor: next }
    },

    counts: () => store.read(readTriggerCounts()),
  }
}

function dataText(data: unknown, field: string): string {
  const json = JSON.stringify(data ?? null)
  if (Buffer.byteLength(json) <= TRIGGER_DATA_BYTES_MAX) return json
  throw new IchidoError('PAYLOAD_TOO_LARGE', `${field} is larger than ${TRIGGER_DATA_BYTES_MAX} bytes as JSON`, {
    field,
  })
}

function render({ trigger, outcomes }: TriggerRows): TriggerShape {
  const processedAtMs = integerOrNull(trigger, 'processed_at')
  return {
    trigger_id: text(trigger, 'id'),
    topic: text(trigger, 'topic'),
    dedupe_key: text(trigger, 'dedupe_key'),
    user_id: text(trigger, 'user_id'),
    state: stateOf(processedAtMs, integerOrNull(trigger, 'settled_at')),
    created_at: iso(integer(trigger, 'created_at')),
    processed_at: isoOrNull(processedAtMs),
    outcomes: outcomes.map(renderOutcome),
  }
}

function stateOf(processedAtMs: number | null, settledAtMs: number | null): TriggerState {
  if (processedAtMs === null) return 'unprocessed'
  return settledAtMs === null ? 'waiting' : 'processed'
}

function renderOutcome(row: Row): TriggerOutcomeShape {
  return {
    definition_id: text(row, 'definition_id'),
    definition: textOrNull(row, 'definition'),
    ...renderMade(row),
  }
}

function renderEntry(row: Row): TriggerEntryShape {
  return {
    trigger_id: text(row, 'trigger_id'),
    topic: text(row, 'topic'),
    dedupe_key: text(row, 'dedupe_key'),
    triggered_at: iso(integer(row, 'triggered_at')),
    ...renderMade(row),
  }
}

function renderMade(row: Row) {
  return {
    outcome: text(row, 'outcome') as TriggerOutcome,
    job_id: textOrNull(row, 'job_id'),
    reason: textOrNull(row, 'reason'),
    field: textOrNull(row, 'field'),
    updated_at: iso(integer(row, 'updated_at')),
  }
}
