import { IchidoError } from '@ichido/sdk/protocol'

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/

export function notFound(what: string, id: string): IchidoError {
  return new IchidoError('NOT_FOUND', `There is no ${what} ${id}`)
}

/** What is not an id names nothing; PostgreSQL would fail on it instead of finding nothing. */
export function requireId(what: string, id: string): void {
  if (!UUID.test(id)) throw notFound(what, id)
}
