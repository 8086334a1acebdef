import {
  type HookRequest,
  type HookShape,
  IchidoError,
  NAME_PATTERN,
  NAME_RULE,
  type Page,
  type PutHookResponse,
  type RecordedTriggerShape,
  TRIGGER_DATA_BYTES_MAX,
  type TriggerDetail,
  type TriggerEntryShape,
  type TriggerOutcomeShape,
  type TriggerRequest,
  type TriggerShape,
  type TriggerState,
} from '@ichido/sdk/protocol'
import { parseKey } from '../../core/keys/key.ts'
import { type Caller, can, mayRead, visibleUser } from '../../core/limits/roles.ts'
import {
  hookSecretProblem,
  newStandardSecret,
  type SignedDelivery,
  verifyDelivery,
} from '../../core/schedule/hook-signature.ts'
import { findDefinition } from '../../store/schedules/definitions.ts'
import * as store from '../../store/triggers/hooks.ts'
import {
  findTrigger,
  listTriggers,
  readTriggerCounts,
  readTriggerLedger,
  recordTriggers,
  type TriggerCounts,
  type TriggerEntryRow,
  type TriggerOutcomeRow,
  type TriggerRows,
} from '../../store/triggers/triggers.ts'
import { iso, isoOrNull, notFound, renderPage, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'

export type { TriggerCounts } from '../../store/triggers/triggers.ts'

const HOOK_SECRET_BYTES = 32
/** Operators and admins make hooks, so a hook can send the same triggers as they can. */
const HOOK_SENDER_ROLE = 'operator'

interface TriggerQuery {
  topic: string | null
  /** The name of a definition. */
  definition: string | null
  state: TriggerState | null
}

export interface TriggerService {
  /**
   * Stores all triggers or none. Each answer is the first trigger with the same dedupe key. `fieldOf` names the field of an
   * item in a refusal.
   */
  record(
    caller: Caller,
    items: readonly TriggerRequest[],
    fieldOf?: (item: number, field: string) => string,
  ): Promise<RecordedTriggerShape[]>
  list(caller: Caller, query: TriggerQuery, limit: number, after: string | null): Promise<Page<TriggerShape>>
  get(caller: Caller, triggerId: string): Promise<TriggerDetail>
  /** The outcomes of the triggers of a definition, newest first. */
  ledger(definition: string, limit: number, after: string | null): Promise<Page<TriggerEntryShape>>
  /** For metrics. */
  counts(): Promise<TriggerCounts>
}

export function createTriggerService({ world, store, bus, meter }: Deps): TriggerService {
  /** @param reader checked, if given: it must be able to see the definition. */
  async function definitionIdOf(name: string, reader?: Caller): Promise<string> {
    const found = await store.read(findDefinition(name))
    if (found === null || (reader !== undefined && !mayRead(reader, found.userId))) throw notFound('definition', name)
    return found.id
  }

  return {
    async record(caller, items, fieldOf = (item, field) => `triggers.${item}.${field}`) {
      const operates = can(caller, 'operate')
      // The ids keep the order of triggers that come in the same millisecond.
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
      const definitionId = definition === null ? null : await definitionIdOf(definition, caller)
      const filter = { userId: visibleUser(caller), topic, definitionId, state }
      return renderPage(await store.read(listTriggers(filter, limit, after)), render)
    },

    async get(caller, triggerId) {
      requireId('trigger', triggerId)
      const found = await store.read(findTrigger(triggerId))
      if (found === null || !mayRead(caller, found.trigger.user_id)) throw notFound('trigger', triggerId)
      return { ...render(found), data: found.trigger.data }
    },

    async ledger(name, limit, after) {
      return renderPage(await store.read(readTriggerLedger(await definitionIdOf(name), limit, after)), renderEntry)
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

/** The trigger of a delivery and its owner; or why the delivery was not signed with the secret of the hook. */
type CheckedDelivery =
  | { kind: 'verified'; sender: Caller; topic: string; dedupeKey: string }
  | { kind: 'refused'; problem: string }

export interface HookService {
  /** Makes a hook or changes it. Only this answer has a secret that the server made. */
  put(caller: Caller, name: string, request: HookRequest): Promise<PutHookResponse>
  get(name: string): Promise<HookShape>
  list(limit: number, after: string | null): Promise<Page<HookShape>>
  remove(caller: Caller, name: string): Promise<void>
  check(name: string, sent: Omit<SignedDelivery, 'nowMs'>): Promise<CheckedDelivery>
}

export function createHookService({ world, store: db }: Pick<Deps, 'world' | 'store'>): HookService {
  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  return {
    async put(caller, name, { scheme, topic, secret = null }) {
      const problem = secret === null ? null : hookSecretProblem(scheme, secret)
      if (problem !== null) throw invalid('secret', problem)
      const random = world.secret(HOOK_SECRET_BYTES)
      const newSecret = scheme === 'standard' ? newStandardSecret(Buffer.from(random, 'base64url')) : random
      const change = { id: world.uuid(), name, scheme, topic, secret, newSecret, userId: caller.userId }
      const outcome = await db.write(store.putHook(change, by(caller)))
      if (outcome.kind === 'secret_needed') {
        throw invalid(
          'secret',
          'is required to change the scheme, because the old secret does not work with the new scheme',
        )
      }
      return { ...renderHook(outcome.hook), secret: outcome.isNew && secret === null ? outcome.hook.secret : null }
    },

    async get(name) {
      return renderHook((await find(name)).hook)
    },

    async list(limit, after) {
      return renderPage(await db.read(store.listHooks(limit, after)), renderHook)
    },

    async remove(caller, name) {
      if (!(await db.write(store.deleteHook(name, by(caller))))) throw notFound('hook', name)
    },

    async check(name, sent) {
      const { hook, nowMs } = await find(name)
      const verdict = verifyDelivery(hook.scheme, hook.secret, { ...sent, nowMs })
      if (verdict.kind === 'malformed') throw invalid(verdict.header, verdict.problem)
      if (verdict.kind === 'refused') return verdict
      const { deliveryId, idHeader, event } = verdict.delivery
      // Two hooks of one user may get the same id from different senders.
      const key = parseKey(`hook:${name}:${deliveryId}`)
      if (!key.ok) throw invalid(idHeader, `with "hook:${name}:" before it ${key.problem}`)
      const topic = event === null ? hook.topic : `${hook.topic}.${event}`
      if (!NAME_PATTERN.test(topic)) throw invalid('x-github-event', `with "${hook.topic}." before it ${NAME_RULE}`)
      return { kind: 'verified', sender: { userId: hook.userId, role: HOOK_SENDER_ROLE }, topic, dedupeKey: key.key }
    },
  }

  async function find(name: string) {
    const found = await db.read(store.findHook(name))
    if (found === null) throw notFound('hook', name)
    return found
  }
}

function invalid(field: string, problem: string): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', `${field} ${problem}`, { field })
}

function renderHook({ name, scheme, topic, userId, createdAtMs, updatedAtMs }: store.Hook): HookShape {
  return { name, scheme, topic, user_id: userId, created_at: iso(createdAtMs), updated_at: iso(updatedAtMs) }
}
