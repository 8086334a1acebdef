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

/** Answers what Node's parser refuses before there is a request: by hand, in the form of every other error. */
export function createClientErrorHandler(world: Pick<World, 'uuid'>) {
  return (trouble: Pick<ConnectionError, 'code'>, socket: Socket): void => {
    if (trouble.code === 'ECONNRESET' || !socket.writable) return void socket.destroy()
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
  }
}

function toError(code: string): IchidoError {
  if (code === 'HPE_HEADER_OVERFLOW') return new IchidoError('HEADERS_TOO_LARGE')
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new IchidoError('REQUEST_TIMEOUT')
  return new IchidoError('INVALID_PAYLOAD', 'This is not valid HTTP')
}
