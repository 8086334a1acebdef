import { IchidoError, type Page } from '@ichido/sdk/protocol'
import { isUuid } from '../contract/common.ts'
import { type Ability, type Caller, can, visibleUser } from '../core/limits/roles.ts'

let lastMs = Number.NaN
let lastIso = ''

/** Keeps the last instant, because the jobs of one batch share theirs. */
export function iso(ms: number): string {
  if (ms !== lastMs) {
    lastIso = new Date(ms).toISOString()
    lastMs = ms
  }
  return lastIso
}

export function isoOrNull(ms: number | null): string | null {
  return ms === null ? null : iso(ms)
}

export function renderPage<Row, Shape>(
  { rows, next }: { rows: readonly Row[]; next: string | null },
  render: (row: Row) => Shape,
): Page<Shape> {
  return { data: rows.map((row) => render(row)), next_cursor: next }
}

export function notFound(what: string, id: string): IchidoError {
  return new IchidoError('NOT_FOUND', `There is no ${what} ${id}`)
}

/** A text that is not an id names nothing. PostgreSQL would fail on it instead of finding nothing. */
export function requireId(what: string, id: string): void {
  if (!isUuid(id)) throw notFound(what, id)
}

export function requireAbility(caller: Caller, ability: Ability): void {
  if (!can(caller, ability)) throw new IchidoError('FORBIDDEN')
}

/** The filter of a list, limited to what the caller may see; null: nothing. */
export function visibleTo<Filter extends { userId: string | null }>(caller: Caller, filter: Filter): Filter | null {
  const own = visibleUser(caller)
  if (own === null) return filter
  return filter.userId === null || filter.userId === own ? { ...filter, userId: own } : null
}
