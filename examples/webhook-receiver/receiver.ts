import { createHmac, timingSafeEqual } from 'node:crypto'
import type { DatabaseSync } from 'node:sqlite'
import { createIdempotency, sqliteKeys } from 'ichido/idempotency'
import { z } from 'zod'

const message = z.object({ type: z.string(), data: z.object({ job_id: z.string() }) })
const TOLERANCE_SECONDS = 5 * 60

/**
 * Receives the webhooks of Ichido, and counts each message once. A message may arrive twice, for example if our answer
 * was lost. Every try has the same `webhook-id`, so that id is the idempotency key. The effect and the key are stored in
 * one transaction.
 */
export function createReceiver(database: DatabaseSync, secret: string): (request: Request) => Promise<Response> {
  database.exec('CREATE TABLE IF NOT EXISTS ended_jobs (job_id TEXT NOT NULL, type TEXT NOT NULL)')
  const once = createIdempotency({ keys: sqliteKeys(database) })

  return async (request) => {
    const body = await request.text()
    if (!isSigned(request.headers, body, secret)) return new Response('The signature is wrong', { status: 401 })
    const headers = new Headers(request.headers)
    headers.set('idempotency-key', headers.get('webhook-id') ?? '')
    const keyed = new Request(request.url, { method: 'POST', headers, body })
    return once.fetch(keyed, { route: 'POST /ichido', user: 'ichido' }, (call) =>
      call.withKey((tx) => {
        const { type, data } = message.parse(JSON.parse(body))
        tx.prepare('INSERT INTO ended_jobs VALUES (?, ?)').run(data.job_id, type)
        return { status: 204 }
      }),
    )
  }
}

/** Checks a signature by Standard Webhooks. During a rotation there are two, and one of them must match. */
function isSigned(headers: Headers, body: string, secret: string): boolean {
  const [id, timestamp] = [headers.get('webhook-id'), headers.get('webhook-timestamp')]
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_SECONDS) return false
  const key = Buffer.from(secret.replace('whsec_', ''), 'base64')
  const expected = createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest()
  const given = (headers.get('webhook-signature') ?? '').split(' ').map((one) => Buffer.from(one.slice(3), 'base64'))
  return given.some((one) => one.length === expected.length && timingSafeEqual(one, expected))
}
