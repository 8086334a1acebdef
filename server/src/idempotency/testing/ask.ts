import { randomUUID } from 'node:crypto'
import type { FetchHandler, Idempotency, Route } from '../index.ts'

export const fresh = () => ({ key: `key-${randomUUID()}`, note: `note-${randomUUID()}` })

export interface Said {
  status: number
  replayed: boolean
  code: unknown
  body: unknown
}

/** One request through the fetch adapter, without a server. */
export async function ask<Tx, Returned>(
  once: Idempotency<Tx, Returned>,
  key: string,
  handler: FetchHandler<Tx, Returned>,
  route: Partial<Route> = {},
): Promise<Said> {
  const request = new Request('http://shop/orders', { method: 'POST', headers: { 'idempotency-key': key } })
  const response = await once.fetch(request, { route: 'POST /orders', user: 'ann', ...route }, handler)
  const body = JSON.parse((await response.text()) || 'null')
  return {
    status: response.status,
    replayed: response.headers.get('idempotent-replayed') === 'true',
    code: body?.error?.code,
    body,
  }
}
