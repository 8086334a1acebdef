import { IchidoError, type Page, type RedriveShape } from '@ichido/sdk/protocol'
import { type Caller, can, mayChange, visibleUser } from '../../core/limits/roles.ts'
import { type DeadFilter, renderFilter } from '../../store/dead-letters/dead-letters.ts'
import {
  abortRedrive,
  beginRedrive,
  countMatching,
  findRedrive,
  listRedrives,
  type Redrive,
} from '../../store/dead-letters/redrive.ts'
import type { Deps } from '../deps.ts'
import { iso, isoOrNull } from '../iso.ts'
import { beginOperation } from '../limits/operations.ts'
import { notFound, requireId } from '../not-found.ts'
import { limitTo } from './dead-letters.ts'

/** Which dead letters: those of a list, or all that match. */
export interface RedriveChoice {
  jobIds: readonly string[] | null
  filter: DeadFilter
}

export interface RedriveService {
  count(caller: Caller, choice: RedriveChoice): Promise<number>
  /** The leader carries it out, from now on and across restarts. */
  begin(caller: Caller, choice: RedriveChoice, perSecond: number | null): Promise<RedriveShape>
  get(caller: Caller, redriveId: string): Promise<RedriveShape>
  list(caller: Caller, limit: number, cursor: string | null): Promise<Page<RedriveShape>>
  /** What was redriven stays so. */
  abort(caller: Caller, redriveId: string): Promise<RedriveShape>
}

export function createRedriveService(deps: Deps): RedriveService {
  const { world, store } = deps
  function allowed(caller: Caller, filter: DeadFilter): DeadFilter {
    const mine = can(caller, 'submit') ? limitTo(caller, filter) : null
    if (mine === null) throw new IchidoError('FORBIDDEN', 'Only operators can redrive dead letters of other users')
    return mine
  }

  async function visible(caller: Caller, redriveId: string): Promise<Redrive> {
    requireId('redrive', redriveId)
    const found = await store.read(findRedrive(redriveId))
    const user = visibleUser(caller)
    if (found === null || (user !== null && user !== found.actor)) throw notFound('redrive', redriveId)
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
      const { rows, next } = await store.read(listRedrives(visibleUser(caller), limit, cursor))
      return { data: rows.map(renderRedrive), next_cursor: next }
    },

    async abort(caller, redriveId) {
      const { actor } = await visible(caller, redriveId)
      if (!mayChange(caller, actor)) throw new IchidoError('FORBIDDEN')
      const aborted = await store.write(abortRedrive(redriveId, caller.userId, world.uuid()))
      if (aborted !== null) return renderRedrive(aborted)
      const { state } = await visible(caller, redriveId)
      // An abort whose answer got lost is sent again.
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
