import { IchidoError, type Page, type RedriveShape } from '@ichido/sdk/protocol'
import { type Caller, can, mayChange, mayRead, visibleUser } from '../../core/limits/roles.ts'
import { type DeadFilter, renderFilter } from '../../store/dead-letters/dead-letters.ts'
import {
  abortRedrive,
  beginRedrive,
  countMatching,
  findRedrive,
  listRedrives,
  type Redrive,
} from '../../store/dead-letters/redrive.ts'
import { iso, isoOrNull, notFound, renderPage, requireId, visibleTo } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { beginOperation } from '../limits/maximum.ts'

/** The dead letters of a list, or all that match. */
interface RedriveChoice {
  jobIds: readonly string[] | null
  filter: DeadFilter
}

export interface RedriveService {
  count(caller: Caller, choice: RedriveChoice): Promise<number>
  /** The leader runs it, also after a restart. */
  begin(caller: Caller, choice: RedriveChoice, perSecond: number | null): Promise<RedriveShape>
  get(caller: Caller, redriveId: string): Promise<RedriveShape>
  list(caller: Caller, limit: number, cursor: string | null): Promise<Page<RedriveShape>>
  /** Jobs that were already redriven stay so. */
  abort(caller: Caller, redriveId: string): Promise<RedriveShape>
}

export function createRedriveService(deps: Deps): RedriveService {
  const { world, store } = deps
  function allowed(caller: Caller, filter: DeadFilter): DeadFilter {
    const visible = can(caller, 'submit') ? visibleTo(caller, filter) : null
    if (visible !== null) return visible
    throw new IchidoError('FORBIDDEN', 'Only operators can redrive dead letters of other users')
  }

  async function visible(caller: Caller, redriveId: string): Promise<Redrive> {
    requireId('redrive', redriveId)
    const found = await store.read(findRedrive(redriveId))
    if (found === null || !mayRead(caller, found.actor)) throw notFound('redrive', redriveId)
    return found
  }

  return {
    count: (caller, { filter, jobIds }) => store.read(countMatching(allowed(caller, filter), jobIds)),

    async begin(caller, { filter, jobIds }, perSecond) {
      const ids = { redriveId: world.uuid(), auditId: world.uuid() }
      const item = { ...ids, actor: caller.userId, filter: allowed(caller, filter), jobIds, perSecond }
      return renderRedrive(await beginOperation(deps, ids.redriveId, caller, beginRedrive(item)))
    },

    get: async (caller, redriveId) => renderRedrive(await visible(caller, redriveId)),

    async list(caller, limit, cursor) {
      return renderPage(await store.read(listRedrives(visibleUser(caller), limit, cursor)), renderRedrive)
    },

    async abort(caller, redriveId) {
      const { actor } = await visible(caller, redriveId)
      if (!mayChange(caller, actor)) throw new IchidoError('FORBIDDEN')
      const aborted = await store.write(abortRedrive(redriveId, caller.userId, world.uuid()))
      if (aborted !== null) return renderRedrive(aborted)
      const { state } = await visible(caller, redriveId)
      // The client repeats an abort whose answer got lost.
      if (state === 'aborted') return renderRedrive(await visible(caller, redriveId))
      throw new IchidoError('ALREADY_ENDED', `Redrive ${redriveId} is ${state}`, { state })
    },
  }
}

function renderRedrive(redrive: Redrive): RedriveShape {
  const { matched, redriven, waiting, skipped } = redrive
  return {
    redrive_id: redrive.redriveId,
    state: redrive.state,
    actor: redrive.actor,
    filter: redrive.filter === null ? null : renderFilter(redrive.filter),
    per_second: redrive.perSecond,
    matched,
    redriven,
    waiting,
    skipped,
    began_at: iso(redrive.beganAtMs),
    ended_at: isoOrNull(redrive.endedAtMs),
  }
}
