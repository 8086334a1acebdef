import { IchidoError } from '@ichido/sdk/protocol'
import { findJsonProblem } from '../core/json/strict-json.ts'
import { StoreFull, StoreUnavailable } from '../core/node/store-errors.ts'

/** What HTTP does for calls over the wire, for those inside the process. */

/** What does not survive a round trip through JSON is refused here as it is over HTTP. */
export function checkJson(value: unknown, field: string): string {
  const refuse = (why: string) => new IchidoError('INVALID_PAYLOAD', `${field} ${why}`, { field })
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw refuse(`cannot be written as JSON: ${error instanceof Error ? error.message : String(error)}`)
  }
  if (text === undefined) throw refuse(`cannot be written as JSON: it is a ${typeof value}`)
  const problem = findJsonProblem(text, field)
  if (problem !== null) throw new IchidoError('INVALID_PAYLOAD', problem.message, { field: problem.field })
  return text
}

/** What passes by itself has a code that says so. */
export function toOutage(error: unknown): unknown {
  if (error instanceof StoreFull) return new IchidoError('STORE_FULL', error.message, { place: error.place })
  return error instanceof StoreUnavailable ? new IchidoError('UNAVAILABLE', error.message) : error
}
