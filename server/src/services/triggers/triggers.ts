import {
  IchidoError,
  type Page,
  type RecordedTriggerShape,
  TRIGGER_DATA_BYTES_MAX,
  type TriggerDetail,
  type TriggerEntryShape,
  type TriggerOutcomeShape,
  type TriggerRequest,
  type TriggerShape,
  type TriggerState,
} from '@ichido/sdk/protocol'
import { type Caller, can, visibleUser } from '../../core/limits/roles.ts'
import { findDefinition } from '../../store/schedules/definitions.ts'
import {
  findTrigger,
  listTriggers,
  readTriggerCounts,
  readTriggerLedger,
  type TriggerCounts,
  type TriggerEntryRow,
  type TriggerOutcomeRow,
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
      if (found === null || (own !== null && found.trigger.user_id !== own)) {
        throw notFound('trigger', triggerId)
      }
      return { ...render(found), data: found.trigger.data }
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
  const { id, topic, dedupe_key, user_id, created_at, processed_at, settled_at } = trigger
  return {
    trigger_id: id,
    topic,
    dedupe_key,
    user_id,
    state: stateOf(processed_at, settled_at),
    created_at: iso(created_at),
    processed_at: isoOrNull(processed_at),
    outcomes: outcomes.map(renderOutcome),
  }
}

function stateOf(processedAtMs: number | null, settledAtMs: number | null): TriggerState {
  if (processedAtMs === null) return 'unprocessed'
  return settledAtMs === null ? 'waiting' : 'processed'
}

function renderOutcome(row: TriggerOutcomeRow): TriggerOutcomeShape {
  return { definition_id: row.definition_id, definition: row.definition, ...renderMade(row) }
}

function renderEntry(row: TriggerEntryRow): TriggerEntryShape {
  const { trigger_id, topic, dedupe_key, triggered_at } = row
  return { trigger_id, topic, dedupe_key, triggered_at: iso(triggered_at), ...renderMade(row) }
}

function renderMade({ outcome, job_id, reason, field, updated_at }: TriggerOutcomeRow | TriggerEntryRow) {
  return { outcome, job_id, reason, field, updated_at: iso(updated_at) }
}
