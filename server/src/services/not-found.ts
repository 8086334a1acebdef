import { IchidoError } from '@ichido/sdk/protocol'
import { isUuid } from '../contract/common/list.ts'

export function notFound(what: string, id: string): IchidoError {
  return new IchidoError('NOT_FOUND', `There is no ${what} ${id}`)
}

/** What is not an id names nothing; PostgreSQL would fail on it instead of finding nothing. */
export function requireId(what: string, id: string): void {
  if (!isUuid(id)) throw notFound(what, id)
}
