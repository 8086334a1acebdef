import { describe, expect, test } from 'vitest'
import { realWorld } from '../../../src/node/world.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { cancelJob, deleteJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { changeCallbackSecret, keepCallbackSecret } from '../../../src/store/webhooks/callback-secrets.ts'
import { CALLBACKS } from '../../../src/core/webhooks/webhook.ts'
import { findDue, recordDelivery, type Try } from '../../../src/store/webhooks/deliveries.ts'
import { beginEnds, deriveDeliveries } from '../../../src/store/webhooks/derive-deliveries.ts'
import { createWebhook, deleteWebhook } from '../../../src/store/webhooks/webhooks.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { BY } from '../../../src/testing/nodes/ticker.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { testServices } from '../../../src/testing/services/services.ts'
import { sql, unique, until } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL: each end of a job gets one delivery for each webhook, whoever commits first. */

const nodes = twoNodes()
const { a, b } = nodes

async function pendingJob(callback: { callback_url?: string } = {}): Promise<string> {
  const opened = { store: a(), remove: async () => {} }
  const { services } = await testServices('postgres', {}, opened)
  const input = { kind: 'work', queue: unique('q'), ...callback }
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

const pendingCall = () => pendingJob({ callback_url: 'https://example.org/' })
/** The jobs of this test that their callbacks were told of. */
const calledBack = async (...jobIds: string[]) =>
  (await told(CALLBACKS)).filter((one) => jobIds.includes(String(one))).toSorted()

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

describe('ends and callbacks', () => {
  /** Nobody listens. */
  async function silence(): Promise<void> {
    await sql(a(), 'DELETE FROM ichido.webhooks')
    await sql(a(), 'DELETE FROM ichido.callbacks')
    await sql(a(), 'DELETE FROM ichido.webhook_places')
    await a().write(beginEnds())
  }

  async function untilCalled(...jobIds: string[]): Promise<unknown[]> {
    const term = await seize(a())
    return until('the messages', async () => {
      await a().write(deriveDeliveries(term, 100))
      const found = await calledBack(...jobIds)
      return found.length === jobIds.length && found
    })
  }

  test('two derivations at once add each message once', async () => {
    await silence()
    const jobId = await pendingCall()
    await a().write(cancelJob(jobId))
    const term = await seize(a())
    await nodes.meet(deriveDeliveries(term, 100), deriveDeliveries(term, 100))
    expect(await untilCalled(jobId)).toEqual([jobId])
  })

  test('a job that is submitted and ends while the resting watermark moves is told', async () => {
    await silence()
    // The watermark is far behind, so it moves to the horizon.
    await sql(a(), 'UPDATE ichido.webhook_places SET tx = tx - 2000')
    const term = await seize(a())
    const gate = await nodes.gate()
    const resting = a().write(gate.hold(deriveDeliveries(term, 100), 'read_any_callback'))
    await gate.reached()
    const jobId = await pendingCall()
    await b().write(cancelJob(jobId))
    await gate.open()
    await resting
    expect(await untilCalled(jobId)).toEqual([jobId])
  })

  test('an end that commits after the watermark has rested is told', async () => {
    await silence()
    const jobId = await pendingCall()
    const gate = await nodes.gate()
    const canceling = b().write(gate.hold(cancelJob(jobId)))
    await gate.reached()
    const term = await seize(a())
    for (let i = 0; i < 3; i++) await a().write(deriveDeliveries(term, 100))
    await gate.open()
    await canceling
    expect(await untilCalled(jobId)).toEqual([jobId])
  })

  test('the resting watermark follows, so that a first callback finds it near', async () => {
    await silence()
    await sql(a(), 'UPDATE ichido.webhook_places SET tx = tx - 2000')
    const mark = async () => Number((await sql(a(), 'SELECT tx FROM ichido.webhook_places'))[0]?.tx)
    const behind = await mark()
    await a().write(deriveDeliveries(await seize(a()), 100))
    expect(await mark()).toBeGreaterThan(behind + 1_000)
  })

  test('a job that is removed while the leader derives is told once', async () => {
    await silence()
    const jobId = await pendingCall()
    await a().write(cancelJob(jobId))
    const term = await seize(a())
    await nodes.meet(deriveDeliveries(term, 100), deleteJob(jobId, BY()))
    await a().write(deriveDeliveries(term, 100))
    expect(await calledBack(jobId)).toEqual([jobId])
  })

  test('a former leader derives nothing', async () => {
    await silence()
    const former = await seize(a())
    const jobId = await pendingCall()
    await a().write(cancelJob(jobId))
    await seize(b())
    expect(await a().write(deriveDeliveries(former, 100))).toBe(null)
    expect(await calledBack(jobId)).toEqual([])
    expect(await untilCalled(jobId)).toEqual([jobId])
  })

  test('a first message and its reader agree about a new secret', async () => {
    const userId = unique('user')
    const [one, other] = [keepCallbackSecret(userId, 'whsec_one'), keepCallbackSecret(userId, 'whsec_two')]
    const kept = await nodes.meet(one, other)
    expect(new Set(kept.map(({ secret }) => secret)).size).toBe(1)
  })

  test('of two rotations at once, the second one keeps the secret of the first', async () => {
    const userId = unique('user')
    await a().write(keepCallbackSecret(userId, 'whsec_zero'))
    const rotate = (secret: string) => changeCallbackSecret(userId, secret, 1_000, BY())
    const [first, second] = await nodes.meet(rotate('whsec_one'), rotate('whsec_two'))
    expect(first).toMatchObject({ secret: 'whsec_one', oldSecret: { secret: 'whsec_zero' } })
    expect(second).toMatchObject({ secret: 'whsec_two', oldSecret: { secret: 'whsec_one' } })
  })
})
