import {
  IchidoError,
  type OperationAction,
  type OperationDryRun,
  type OperationShape,
  type Page,
  type RedriveShape,
} from '@ichido/sdk/protocol'
import { type Caller, can, mayChange, mayRead, visibleUser } from '../../core/limits/roles.ts'
import {
  abortOperation,
  beginOperation,
  type Choice,
  countChoice,
  findOperation,
  listOperations,
  type Operation,
  renderedFilter,
} from '../../store/operations/operations.ts'
import { countMatching } from '../../store/operations/redrive-step.ts'
import { iso, isoOrNull, notFound, renderPage, requireId, visibleTo } from '../answers.ts'
import { type DeadFilter, renderFilter } from '../dead-letters/dead-letters.ts'
import type { Deps } from '../deps.ts'
import { type JobFilter, renderCounts, statesOf } from '../jobs/jobs.ts'
import { beginWithinMaximum } from '../limits/maximum.ts'

export type { Choice } from '../../store/operations/operations.ts'

export interface OperationService {
  /** Counts the jobs that the operation would change. */
  dryRun(caller: Caller, choice: Choice): Promise<OperationDryRun>
  /** The leader runs it, also after a restart. */
  begin(caller: Caller, choice: Choice, perSecond: number | null): Promise<OperationShape>
  get(caller: Caller, operationId: string): Promise<OperationShape>
  list(caller: Caller, limit: number, cursor: string | null): Promise<Page<OperationShape>>
  /** Jobs that were already changed stay so. */
  abort(caller: Caller, operationId: string): Promise<OperationShape>
}

/** In each state, a dry run looks at this many jobs. */
const COUNTED_MAX = 10_000

/** The states that an action can change. */
const STATES = {
  cancel: ['PENDING', 'ORPHANED', 'ASSIGNED', 'RUNNING'],
  retry: ['FAILED', 'TIMED_OUT', 'CANCELED'],
} as const

export function createOperationService(deps: Deps): OperationService {
  const tracked = trackedOperations(deps)
  return {
    async dryRun(caller, choice) {
      const counts = await deps.store.read(countChoice(allowed(caller, choice), COUNTED_MAX))
      const { total, capped, by_state } = renderCounts(counts)
      return { dry_run: true, action: choice.action, matched: total, capped, by_state }
    },
    begin: async (caller, choice, perSecond) => renderOperation(await tracked.begin(caller, choice, perSecond)),
    get: async (caller, operationId) => renderOperation(await tracked.visible(caller, 'operation', operationId)),
    async list(caller, limit, cursor) {
      return renderPage(await tracked.list(caller, null, limit, cursor), renderOperation)
    },
    abort: async (caller, operationId) => renderOperation(await tracked.abort(caller, 'operation', operationId)),
  }
}

/** The dead letters of a list, or all that match. */
interface RedriveChoice {
  jobIds: readonly string[] | null
  filter: DeadFilter
}

/** The operations that redrive dead letters, under their own names. */
export interface RedriveService {
  count(caller: Caller, choice: RedriveChoice): Promise<number>
  begin(caller: Caller, choice: RedriveChoice, perSecond: number | null): Promise<RedriveShape>
  get(caller: Caller, redriveId: string): Promise<RedriveShape>
  list(caller: Caller, limit: number, cursor: string | null): Promise<Page<RedriveShape>>
  /** Jobs that were already redriven stay so. */
  abort(caller: Caller, redriveId: string): Promise<RedriveShape>
}

export function createRedriveService(deps: Deps): RedriveService {
  const tracked = trackedOperations(deps)
  const redrive = (choice: RedriveChoice): Choice => ({ action: 'redrive', ...choice })
  return {
    count: (caller, { jobIds, filter }) =>
      deps.store.read(countMatching(own(caller, filter, 'redrive dead letters'), jobIds)),
    async begin(caller, choice, perSecond) {
      return renderRedrive(await tracked.begin(caller, redrive(choice), perSecond))
    },
    get: async (caller, redriveId) => renderRedrive(await tracked.visible(caller, 'redrive', redriveId)),
    async list(caller, limit, cursor) {
      return renderPage(await tracked.list(caller, 'redrive', limit, cursor), renderRedrive)
    },
    abort: async (caller, redriveId) => renderRedrive(await tracked.abort(caller, 'redrive', redriveId)),
  }
}

/** `what`: an operation of any action, or a redrive. */
type What = 'operation' | 'redrive'

function trackedOperations(deps: Deps) {
  const { world, store } = deps

  async function visible(caller: Caller, what: What, operationId: string): Promise<Operation> {
    requireId(what, operationId)
    const found = await store.read(findOperation(operationId))
    const isOther = what === 'redrive' && found?.action !== 'redrive'
    if (found === null || isOther || !mayRead(caller, found.actor)) throw notFound(what, operationId)
    return found
  }

  return {
    visible,

    begin(caller: Caller, choice: Choice, perSecond: number | null): Promise<Operation> {
      const ids = { operationId: world.uuid(), auditId: world.uuid() }
      const item = { ...allowed(caller, choice), ...ids, actor: caller.userId, perSecond }
      return beginWithinMaximum(deps, ids.operationId, caller, beginOperation(item))
    },

    list: (caller: Caller, action: OperationAction | null, limit: number, cursor: string | null) =>
      store.read(listOperations(visibleUser(caller), action, limit, cursor)),

    async abort(caller: Caller, what: What, operationId: string): Promise<Operation> {
      const { actor } = await visible(caller, what, operationId)
      if (!mayChange(caller, actor)) throw new IchidoError('FORBIDDEN')
      const aborted = await store.write(abortOperation(operationId, caller.userId, world.uuid()))
      if (aborted !== null) return aborted
      const ended = await visible(caller, what, operationId)
      // The client repeats an abort whose answer got lost.
      if (ended.state === 'aborted') return ended
      const name = what === 'redrive' ? 'Redrive' : 'Operation'
      throw new IchidoError('ALREADY_ENDED', `${name} ${operationId} is ${ended.state}`, { state: ended.state })
    },
  }
}

/** The choice, limited to jobs that the caller may change, and to states that the action can change. */
function allowed<T extends Choice>(caller: Caller, choice: T): Choice {
  if (choice.action === 'redrive') return { ...choice, filter: own(caller, choice.filter, 'redrive dead letters') }
  const filter: JobFilter = own(caller, choice.filter, `${choice.action} jobs`)
  const asked = statesOf(filter)
  const states = STATES[choice.action].filter((state) => asked === null || asked.includes(state))
  if (states.length > 0) return { ...choice, filter: { ...filter, states } }
  const message = `filter.state must name a state that a ${choice.action} can change: ${STATES[choice.action].join(', ')}`
  throw new IchidoError('INVALID_PAYLOAD', message, { field: 'filter.state' })
}

function own<Filter extends { userId: string | null }>(caller: Caller, filter: Filter, doing: string): Filter {
  const visible = can(caller, 'submit') ? visibleTo(caller, filter) : null
  if (visible !== null) return visible
  throw new IchidoError('FORBIDDEN', `Only operators can ${doing} of other users`)
}

function renderOperation(operation: Operation): OperationShape {
  const { matched, done, waiting, skipped, refused } = operation
  return {
    operation_id: operation.operationId,
    action: operation.action,
    state: operation.state,
    filter: renderedFilter(operation),
    job_ids: operation.jobIds === null ? null : [...operation.jobIds],
    per_second: operation.perSecond,
    matched,
    done,
    waiting,
    skipped,
    refused,
    created_by: operation.actor,
    created_at: iso(operation.beganAtMs),
    ended_at: isoOrNull(operation.endedAtMs),
  }
}

function renderRedrive(operation: Operation): RedriveShape {
  const { deadFilter, matched, done, waiting, skipped } = operation
  return {
    redrive_id: operation.operationId,
    state: operation.state,
    actor: operation.actor,
    filter: deadFilter === null ? null : renderFilter(deadFilter),
    per_second: operation.perSecond,
    matched,
    redriven: done,
    waiting,
    skipped,
    began_at: iso(operation.beganAtMs),
    ended_at: isoOrNull(operation.endedAtMs),
  }
}
