import type { Socket } from 'node:net'
import { ERRORS, IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { ConnectionError } from 'fastify'
import { errorBody, JSON_TYPE } from './errors.ts'

const REASONS: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  408: 'Request Timeout',
  431: 'Request Header Fields Too Large',
}

/** For a client to read the answer. */
const LINGER_MS = 2_000

/** Answers what Node's parser refuses before there is a request: by hand, in the form of every other error. */
export function createClientErrorHandler(world: Pick<World, 'after' | 'uuid'>) {
  return (trouble: Pick<ConnectionError, 'code'>, socket: Socket): void => {
    // Before TLS is agreed on, nothing that is written would arrive, and the socket would wait for it.
    const isUnheard = trouble.code === 'ECONNRESET' || /^ERR_(SSL|TLS)/.test(trouble.code)
    if (isUnheard || !socket.writable) return void socket.destroy()
    const error = toError(trouble.code)
    const { status, retryable } = ERRORS[error.code]
    const requestId = world.uuid()
    const body = JSON.stringify(errorBody(error, requestId))
    const head = [
      `HTTP/1.1 ${status} ${REASONS[status]}`,
      `Content-Type: ${JSON_TYPE}`,
      `Content-Length: ${Buffer.byteLength(body)}`,
      `Should-Retry: ${retryable}`,
      `X-Request-Id: ${requestId}`,
      'Connection: close',
    ]
    socket.end(`${head.join('\r\n')}\r\n\r\n${body}`)
    // A client that does not close its end would keep the connection for ever.
    socket.once(
      'close',
      world.after(LINGER_MS, () => void socket.destroy()),
    )
  }
}

function toError(code: string): IchidoError {
  if (code === 'HPE_HEADER_OVERFLOW') return new IchidoError('HEADERS_TOO_LARGE')
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new IchidoError('REQUEST_TIMEOUT')
  return new IchidoError('INVALID_PAYLOAD', 'The request is not valid HTTP')
}
