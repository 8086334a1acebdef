import type { IncomingMessage } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import type { SubmitInput } from '../../../contract/submit.ts'
import { type KeyParse, parseKey, parseKeyHeader } from '../../../core/keys/key.ts'

type Keyed = Pick<SubmitInput, 'idempotency_key'>

/** From the header or the body; both may name it, if they agree. */
export function keyOf(request: IncomingMessage, input: Keyed): string | null {
  const header = request.headers['idempotency-key']
  if (header === undefined) return bodyKey(input)
  if (timesSent(request, 'idempotency-key') > 1) {
    throw new IchidoError('INVALID_PAYLOAD', 'Idempotency-Key was sent twice', { field: 'Idempotency-Key' })
  }
  const fromHeader = checked(parseKeyHeader(String(header)), 'Idempotency-Key')
  if (input.idempotency_key !== undefined && bodyKey(input) !== fromHeader) throw new IchidoError('KEY_CONFLICT')
  return fromHeader
}

/** Node joins the values of a header that comes more than once. */
function timesSent({ rawHeaders }: IncomingMessage, header: string): number {
  return rawHeaders.filter((text, i) => i % 2 === 0 && text.toLowerCase() === header).length
}

export function bodyKey(input: Keyed): string | null {
  return input.idempotency_key === undefined ? null : checked(parseKey(input.idempotency_key), 'idempotency_key')
}

function checked(parsed: KeyParse, field: string): string {
  if (parsed.ok) return parsed.key
  throw new IchidoError('INVALID_PAYLOAD', `${field} ${parsed.problem}`, { field })
}
