import { randomUUID } from 'node:crypto'
import type { ServerResponse } from 'node:http'
import { IchidoError } from 'ichido'

export function sendJson(
  response: ServerResponse,
  status: number,
  value: unknown,
  headers: Record<string, string> = {},
) {
  response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store', ...headers })
  response.end(JSON.stringify(value))
}

/** Uses the form of Ichido's own errors, so that its client understands them. */
export function errorAnswer(thrown: unknown) {
  const error = thrown instanceof IchidoError ? thrown : new IchidoError('INTERNAL')
  const { code, message, details, status, retryable } = error
  const headers = { 'should-retry': String(retryable) }
  return { status, headers, body: { error: { code, message, details, request_id: randomUUID() } } }
}

export function sendError(response: ServerResponse, thrown: unknown): void {
  if (response.headersSent) {
    response.destroy()
    return
  }
  const { status, headers, body } = errorAnswer(thrown)
  sendJson(response, status, body, headers)
}
