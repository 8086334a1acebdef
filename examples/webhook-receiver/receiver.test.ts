import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../server/src/services/access/access.ts'
import { Receiver } from '../../server/src/testing/http/receiver.ts'
import { courier, deliverer, delivering, endJob, waitOver } from '../../server/src/testing/nodes/deliverer.ts'
import { type TestServices, testServices } from '../../server/src/testing/services/services.ts'
import { createReceiver } from './receiver.ts'

let opened: TestServices
let server: Receiver
beforeAll(async () => {
  opened = await testServices('sqlite', { courier })
  await opened.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
  server = await Receiver.open()
})
afterAll(async () => {
  await server.close()
  await opened.close()
})

test('a receiver with ichido/idempotency sees each message once, although each arrives three times', async () => {
  const { services } = opened
  const { webhook_id, secret } = await services.webhooks.create(LOCAL_ADMIN, { url: server.url })
  const database = new DatabaseSync(':memory:')
  const receive = createReceiver(database, secret)
  server.answer = async ({ id, headers, body }) => {
    const given = Object.entries(headers).map(([name, value]): [string, string] => [name, String(value)])
    const response = await receive(new Request(server.url, { method: 'POST', headers: given, body }))
    // The first two answers to each message are lost.
    const isLost = server.arrived.filter((one) => one.id === id).length < 3
    return isLost ? (lost) => void lost.destroy() : response.status
  }
  const jobs = [await endJob(services), await endJob(services), await endJob(services)]
  const tick = await deliverer(services)
  const delivered = await delivering(tick, 'all messages', async () => {
    await waitOver(services)
    const { data } = await services.webhooks.deliveries(webhook_id, 'delivered', 200, null)
    return data.length === jobs.length && data
  })
  expect(server.arrived).toHaveLength(9)
  expect(new Set(server.arrived.map(({ id }) => id))).toEqual(new Set(delivered.map(({ delivery_id }) => delivery_id)))
  const rows = database.prepare('SELECT job_id, type FROM ended_jobs ORDER BY job_id').all()
  expect(rows.map(({ job_id, type }) => [job_id, type])).toEqual(jobs.toSorted().map((id) => [id, 'job.succeeded']))

  const [first] = server.arrived
  const forged = { 'webhook-id': 'other', 'webhook-timestamp': String(first?.headers['webhook-timestamp']) }
  const headers = { ...forged, 'webhook-signature': String(first?.headers['webhook-signature']) }
  const body = first?.body ?? ''
  expect((await receive(new Request(server.url, { method: 'POST', headers, body }))).status).toBe(401)
})
