import type { DeliveryShape } from '@ichido/sdk/protocol'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { verifyDelivery } from '../../core/schedule/hook-signature.ts'
import type { Courier } from '../../courier/port.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { removeDeliveries, removeEvents } from '../../store/system/retention.ts'
import { beginEnds } from '../../store/webhooks/derive-deliveries.ts'
import { type Arrived, Receiver } from '../../testing/http/receiver.ts'
import { courier, deliverer, delivering, endJob, endRun, waitOver } from '../../testing/nodes/deliverer.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { ENGINES, type TestServices, testServices } from '../../testing/services/services.ts'
import { leftovers } from '../../testing/store/retention.ts'
import { sql, unique } from '../../testing/store/store.ts'

const REDRIVES = { actor: null, action: 'callback.redrive', subject: null, fromMs: null, toMs: null }

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestServices
  let receiver: Receiver
  const services = () => opened.services
  const store = () => opened.services.deps.store
  beforeAll(async () => {
    opened = await testServices(engine, { courier })
    await opened.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
    await store().write(beginEnds())
  })
  afterAll(() => opened.close())
  beforeEach(async () => {
    receiver = await Receiver.open()
  })
  afterEach(async () => {
    await receiver.close()
    for (const table of ['callbacks', 'webhooks', 'webhook_deliveries', 'callback_secrets'])
      await sql(store(), `DELETE FROM ichido.${table}`)
  })

  const called = (how: Parameters<typeof endJob>[1] = 'succeed', input: Parameters<typeof endJob>[2] = {}) =>
    endJob(services(), how, { callback_url: receiver.url, ...input })
  const callbackOf = async (jobId: string) => (await services().jobs.get(LOCAL_ADMIN, jobId)).callback
  const deliveries = async () => (await services().callbacks.list(null, 200, null)).data.toReversed()
  const secretOf = async () => (await services().callbacks.secret(LOCAL_ADMIN, LOCAL_ADMIN.userId)).secret
  const verify = ({ headers, body }: Arrived, secret: string) =>
    verifyDelivery('standard', secret, { headers, body: Buffer.from(body), nowMs: Date.now() }).kind
  /** Ticks until the latest message about the job is in this state. */
  const isIn = (tick: () => Promise<unknown>, jobId: string, state: DeliveryShape['state']) =>
    delivering(tick, `a ${state} delivery`, async () => {
      const delivery = (await callbackOf(jobId))?.delivery
      return delivery?.state === state && delivery
    })

  test('the end of a job is told to its callback once, signed with its user’s secret', async () => {
    const plain = await endJob(services())
    const jobId = await called('succeed', { labels: { team: 'a' } })
    expect(await callbackOf(plain)).toBe(null)
    expect(await callbackOf(jobId)).toEqual({ url: receiver.url, delivery: null })
    const tick = await deliverer(services())
    const delivery = await isIn(tick, jobId, 'delivered')
    await tick()
    expect(receiver.arrived).toHaveLength(1)
    const [arrived] = receiver.arrived as [Arrived]
    expect(arrived).toMatchObject({ id: delivery.delivery_id, type: 'job.succeeded', jobId })
    expect(JSON.parse(arrived.body)).toMatchObject({
      type: 'job.succeeded',
      timestamp: expect.any(String),
      data: { job_id: jobId, state: 'SUCCEEDED', labels: { team: 'a' } },
    })
    expect(verify(arrived, await secretOf())).toBe('verified')
    expect(delivery).toMatchObject({ webhook_id: null, job_id: jobId, attempts: 1, last_status: 204, last_error: null })
    expect(await deliveries()).toEqual([delivery])
  })

  test('a job tells its webhooks and its callback, each with an id of its own', async () => {
    const { webhook_id } = await services().webhooks.create(LOCAL_ADMIN, { url: receiver.url })
    const jobId = await called()
    const tick = await deliverer(services())
    const told = await isIn(tick, jobId, 'delivered')
    const found = await delivering(tick, 'the webhook', async () => {
      const { data } = await services().webhooks.deliveries(webhook_id, 'delivered', 10, null)
      return data.length === 1 && data
    })
    expect(receiver.arrived.map(({ id }) => id).sort()).toEqual([told.delivery_id, found[0]?.delivery_id].sort())
    expect(new Set(receiver.arrived.map(({ body }) => body)).size).toBe(1)
  })

  test('only ends are told, in their order, even if the first message fails', async () => {
    receiver.answer = ({ type }) => (type === 'job.failed' && receiver.arrived.length === 1 ? 500 : 200)
    const queue = unique('q')
    const jobId = await called('fail for good', { queue })
    await called('release')
    const tick = await deliverer(services())
    await delivering(tick, 'a try', async () => (await callbackOf(jobId))?.delivery?.last_status === 500)
    await services().deadLetters.retry(LOCAL_ADMIN, jobId)
    await endRun(services(), queue, 'succeed')
    const other = await called()
    // The message about another job overtakes, the second message about this job does not.
    await isIn(tick, other, 'delivered')
    await tick()
    await waitOver(services())
    await isIn(tick, jobId, 'delivered')
    const own = receiver.arrived.filter((one) => one.jobId === jobId)
    expect(own.map(({ type }) => type)).toEqual(['job.failed', 'job.failed', 'job.succeeded'])
    expect(await deliveries()).toHaveLength(3)
  })

  test('after the last try a delivery is dead, and can be redriven with its id', async () => {
    receiver.answer = () => 503
    const jobId = await called()
    const tick = await deliverer(services())
    for (let tries = 1; tries <= 11; tries++) {
      await delivering(tick, `try ${tries}`, async () => (await callbackOf(jobId))?.delivery?.attempts === tries)
      await waitOver(services())
    }
    const dead = await isIn(tick, jobId, 'dead')
    expect(dead).toMatchObject({ attempts: 11, next_at: null, last_status: 503, ended_at: expect.any(String) })
    expect(await services().webhooks.counts()).toEqual({ pending: 0, dead: 1 })
    receiver.answer = () => 200
    expect(await services().callbacks.redriveDead(LOCAL_ADMIN)).toEqual({ redriven: 1 })
    expect(await isIn(tick, jobId, 'delivered')).toMatchObject({ delivery_id: dead.delivery_id, attempts: 12 })
    await services().callbacks.redrive(LOCAL_ADMIN, jobId)
    expect(await isIn(tick, jobId, 'delivered')).toMatchObject({ attempts: 13 })
    expect(new Set(receiver.arrived.map(({ id }) => id)).size).toBe(1)
    const { data: audit } = await services().audit.list(LOCAL_ADMIN, REDRIVES, 10, null)
    expect(audit.map(({ subject }) => subject)).toEqual([jobId, '*'])
  })

  test('410 Gone makes the message dead at once, and the next job is told', async () => {
    receiver.answer = () => 410
    const jobId = await called()
    const tick = await deliverer(services())
    expect(await isIn(tick, jobId, 'dead')).toMatchObject({ attempts: 1, last_status: 410 })
    receiver.answer = () => 200
    await isIn(tick, await called(), 'delivered')
  })

  test('a name that leads to a private address gets nothing', async () => {
    const posted: string[] = []
    const rebinding: Courier = {
      resolve: async () => ['203.0.114.1', '169.254.169.254'],
      post: async ({ address }) => {
        posted.push(address)
        return 200
      },
    }
    const jobId = await called('succeed', { callback_url: 'https://rebinding.example/' })
    const tick = await deliverer(services(), { courier: rebinding, allowPrivate: false })
    const tried = await delivering(tick, 'a try', async () => {
      const delivery = (await callbackOf(jobId))?.delivery
      return delivery?.attempts === 1 && delivery
    })
    expect(tried).toMatchObject({ state: 'pending', last_error: expect.stringContaining('private or reserved') })
    expect(posted).toEqual([])
  })

  test('a host with many due messages leaves room for the other hosts', async () => {
    const silent: Courier = {
      resolve: (host) => courier.resolve(host),
      post: (message, signal) =>
        message.url.hostname === '127.0.0.2' ? new Promise(() => {}) : courier.post(message, signal),
    }
    const slow = receiver.url.replace('127.0.0.1', '127.0.0.2')
    for (let i = 0; i < 20; i++) await called('succeed', { callback_url: slow })
    const jobId = await called()
    await isIn(await deliverer(services(), { courier: silent }), jobId, 'delivered')
  })

  test('each user has a secret, and after a rotation messages have two signatures', async () => {
    const old = await secretOf()
    expect(await secretOf()).toBe(old)
    const { secret, old_secret_until } = await services().callbacks.rotate(LOCAL_ADMIN, LOCAL_ADMIN.userId)
    expect(Date.parse(old_secret_until ?? '')).toBeGreaterThan(Date.now())
    expect((await services().callbacks.secret(LOCAL_ADMIN, 'ann')).secret).not.toBe(secret)
    const tick = await deliverer(services())
    await isIn(tick, await called(), 'delivered')
    await sql(store(), 'UPDATE ichido.callback_secrets SET old_secret_until = 1')
    await isIn(tick, await called(), 'delivered')
    expect(receiver.arrived.map((one) => [old, secret].map((each) => verify(one, each)))).toEqual([
      ['verified', 'verified'],
      ['refused', 'verified'],
    ])
  })

  test('a job that is deleted before the leader looked is told', async () => {
    const jobId = await called()
    expect(await services().jobs.delete(LOCAL_ADMIN, jobId)).toBe('deleted')
    expect(await leftovers(store())).toEqual({})
    const tick = await deliverer(services())
    await delivering(tick, 'the message', async () => (await deliveries())[0]?.state === 'delivered')
    expect(receiver.arrived.map((one) => one.jobId)).toEqual([jobId])
    expect(verify(receiver.arrived[0] as Arrived, await secretOf())).toBe('verified')
  })

  test('a job whose events are removed before the leader looked is told', async () => {
    const jobId = await called()
    await sql(store(), 'UPDATE ichido.ended SET finished_at = 1 WHERE job_id = $1', jobId)
    await store().write(removeEvents(await seize(store()), [jobId], 1))
    await isIn(await deliverer(services()), jobId, 'delivered')
  })

  test('retention removes the delivery and leaves the callback', async () => {
    const jobId = await called()
    await isIn(await deliverer(services()), jobId, 'delivered')
    await sql(store(), 'UPDATE ichido.webhook_deliveries SET ended_at = 1')
    const term = await seize(store())
    expect(await store().write(removeDeliveries(term, 'delivered', 1_000, 10))).toBe(1)
    expect(await callbackOf(jobId)).toEqual({ url: receiver.url, delivery: null })
    await expect(services().callbacks.redrive(LOCAL_ADMIN, jobId)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    // It is not told again.
    await (await deliverer(services()))()
    expect(await deliveries()).toEqual([])
  })

  test('a former leader sends its message, and records nothing', async () => {
    let answer = (_: number) => {}
    const late = new Promise<number>((resolve) => {
      answer = resolve
    })
    receiver.answer = () => (receiver.arrived.length === 1 ? late : 200)
    const jobId = await called()
    const former = await deliverer(services(), { leading: trusting(await seize(store())) })
    await delivering(former, 'the first message', async () => receiver.arrived.length === 1)
    const found = await isIn(await deliverer(services()), jobId, 'delivered')
    answer(500)
    await called()
    await former()
    await former()
    expect(await deliveries()).toEqual([found])
    expect(receiver.arrived.map(({ id }) => id)).toEqual([found.delivery_id, found.delivery_id])
  })
})
