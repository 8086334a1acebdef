import { describe, expect, test } from 'vitest'
import { realWorld } from '../../../src/node/world.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { findDue, recordDelivery, type Try } from '../../../src/store/webhooks/deliveries.ts'
import { deriveDeliveries } from '../../../src/store/webhooks/derive-deliveries.ts'
import { createWebhook, deleteWebhook } from '../../../src/store/webhooks/webhooks.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { BY } from '../../../src/testing/nodes/ticker.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { testServices } from '../../../src/testing/services/services.ts'
import { sql, unique, until } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL: each end of a job gets one delivery for each webhook, whoever commits first. */

const nodes = twoNodes()
const { a, b } = nodes

async function pendingJob(): Promise<string> {
  const opened = { store: a(), remove: async () => {} }
  const { services } = await testServices('postgres', {}, opened)
  const input = { kind: 'work', queue: unique('q') }
  const submitted = await services.submission.submit(LOCAL_ADMIN, input, { key: null })
  if (submitted.kind === 'refused') throw new Error(submitted.refusal.message)
  return submitted.jobId
}

function newWebhook() {
  const webhookId = realWorld.uuid()
  const filter = { events: ['job.canceled' as const], queue: null, kind: null, label: null }
  const item = { webhookId, url: 'https://example.org/', description: '', secret: 'whsec_', userId: 'ann', ...filter }
  return { webhookId, command: createWebhook(item, 1_000, BY()) }
}

async function listen(): Promise<string> {
  const { webhookId, command } = newWebhook()
  await a().write(command)
  return webhookId
}

const told = async (webhookId: string) =>
  (await sql(a(), 'SELECT subject_id FROM ichido.webhook_deliveries WHERE webhook_id = $1 ORDER BY id', webhookId)).map(
    ({ subject_id }) => subject_id,
  )

/** Derives until the webhook has a delivery of this job: transactions of other databases delay the horizon. */
async function untilTold(webhookId: string, jobId: string): Promise<unknown[]> {
  const term = await seize(a())
  return until('the delivery', async () => {
    await a().write(deriveDeliveries(term, 100))
    const found = await told(webhookId)
    return found.includes(jobId) && found
  })
}

describe('ends and webhooks', () => {
  test('a webhook that is made while the leader reads gets the end that follows', async () => {
    await listen()
    const jobId = await pendingJob()
    const term = await seize(a())
    const { webhookId, command } = newWebhook()
    // The end has begun before the leader reads, and commits after the webhook was made.
    const [beforeEnd, whileReading] = [await nodes.gate(), await nodes.gate()]
    const canceling = b().write(beforeEnd.hold(cancelJob(jobId)))
    await beforeEnd.reached()
    const deriving = a().write(whileReading.hold(deriveDeliveries(term, 100), 'read_listening_webhooks'))
    await whileReading.reached()
    await b().write(command)
    await beforeEnd.open()
    await canceling
    await whileReading.open()
    await deriving
    expect(await untilTold(webhookId, jobId)).toEqual([jobId])
  })

  test('an end that commits late is not skipped', async () => {
    const webhookId = await listen()
    const [late, early] = [await pendingJob(), await pendingJob()]
    const term = await seize(a())
    const gate = await nodes.gate()
    const canceling = a().write(gate.hold(cancelJob(late)))
    await gate.reached()
    await b().write(cancelJob(early))
    await b().write(deriveDeliveries(term, 100))
    await gate.open()
    await canceling
    expect((await untilTold(webhookId, late)).toSorted()).toEqual([late, early].toSorted())
  })

  test('a webhook that is made while an end commits gets it', async () => {
    const jobId = await pendingJob()
    const gate = await nodes.gate()
    const canceling = a().write(gate.hold(cancelJob(jobId)))
    await gate.reached()
    const webhookId = await listen()
    await gate.open()
    await canceling
    expect(await untilTold(webhookId, jobId)).toEqual([jobId])
  })

  test('two derivations at once add each delivery once', async () => {
    const webhookId = await listen()
    const jobId = await pendingJob()
    await a().write(cancelJob(jobId))
    const term = await seize(a())
    await nodes.meet(deriveDeliveries(term, 100), deriveDeliveries(term, 100))
    expect(await untilTold(webhookId, jobId)).toEqual([jobId])
  })

  test('a leader that takes over waits for the derivation, and the former leader adds nothing', async () => {
    const webhookId = await listen()
    const former = await seize(a())
    const jobId = await pendingJob()
    await a().write(cancelJob(jobId))
    await seize(b())
    expect(await a().write(deriveDeliveries(former, 100))).toBe(null)
    expect(await told(webhookId)).toEqual([])
    expect(await untilTold(webhookId, jobId)).toEqual([jobId])
  })

  test('no delivery outlives its webhook', async () => {
    const webhookId = await listen()
    const jobId = await pendingJob()
    await a().write(cancelJob(jobId))
    const term = await seize(a())
    // The derivation adds its deliveries before the deletion gets the lock.
    await nodes.meet(deriveDeliveries(term, 100), deleteWebhook(webhookId, BY()))
    expect(await told(webhookId)).toEqual([])
    const other = await listen()
    const second = await pendingJob()
    await a().write(cancelJob(second))
    await nodes.meet(deleteWebhook(other, BY()), deriveDeliveries(term, 100))
    await a().write(deriveDeliveries(term, 100))
    expect(await told(other)).toEqual([])
  })

  test('of two outcomes of the same try, one is recorded', async () => {
    const webhookId = await listen()
    const jobId = await pendingJob()
    await a().write(cancelJob(jobId))
    await untilTold(webhookId, jobId)
    const { due } = await a().read(findDue(10))
    const deliveryId = due.find((one) => one.webhookId === webhookId)?.deliveryId ?? ''
    const term = await seize(a())
    const tried: Try = {
      ...{ deliveryId, webhookId, attempts: 0, failures: 0, waitMs: 1_000 },
      ...{ outcome: 'failed', status: 500, error: 'It failed' },
    }
    const delivered: Try = { ...tried, outcome: 'delivered', status: 200, error: null }
    expect(await nodes.meet(recordDelivery(term, delivered), recordDelivery(term, tried))).toEqual([true, false])
    const rows = await sql(a(), 'SELECT state, attempts FROM ichido.webhook_deliveries WHERE id = $1', deliveryId)
    expect(rows).toEqual([{ state: 'delivered', attempts: 1 }])
    const former = term
    await seize(b())
    await sql(a(), `UPDATE ichido.webhook_deliveries SET state = 'pending', next_at = 0 WHERE id = $1`, deliveryId)
    expect(await a().write(recordDelivery(former, { ...delivered, attempts: 1 }))).toBe(false)
  })
})
