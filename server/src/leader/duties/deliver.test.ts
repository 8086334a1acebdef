import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { ServerResponse } from 'node:http'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { verifyDelivery } from '../../core/schedule/hook-signature.ts'
import type { Courier } from '../../courier/port.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { turnAlerts } from '../../store/system/alerts.ts'
import { removeDeliveries, removeEvents } from '../../store/system/retention.ts'
import { type Arrived, Receiver } from '../../testing/http/receiver.ts'
import { courier, deliverer, delivering, endJob, endRun, waitOver } from '../../testing/nodes/deliverer.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { ENGINES, type TestServices, testServices } from '../../testing/services/services.ts'
import { sql, unique, until } from '../../testing/store/store.ts'

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestServices
  let receiver: Receiver
  const services = () => opened.services
  const store = () => opened.services.deps.store
  beforeAll(async () => {
    opened = await testServices(engine, { courier })
    await opened.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
  })
  afterAll(() => opened.close())
  beforeEach(async () => {
    receiver = await Receiver.open()
  })
  afterEach(async () => {
    await receiver.close()
    for (const table of ['webhooks', 'webhook_places', 'webhook_deliveries'])
      await sql(store(), `DELETE FROM ichido.${table}`)
  })

  const listen = (input: object = {}) => services().webhooks.create(LOCAL_ADMIN, { url: receiver.url, ...input })
  const deliveries = async (webhookId: string) =>
    (await services().webhooks.deliveries(webhookId, null, 200, null)).data.toReversed()
  const onlyDelivery = async (webhookId: string) => {
    const [delivery, ...more] = await deliveries(webhookId)
    expect(more).toEqual([])
    return delivery
  }
  /** Ticks until each delivery of the webhook is in this state. */
  const allIn = (tick: () => Promise<unknown>, webhookId: string, state: string, count = 1) =>
    delivering(tick, `${count} ${state} deliveries`, async () => {
      const found = await deliveries(webhookId)
      return found.length === count && found.every((one) => one.state === state) && found
    })

  test('the end of a job is told once, signed, and without payload or result', async () => {
    const { webhook_id, secret } = await listen()
    const jobId = await endJob(services(), 'succeed', { labels: { team: 'a' } })
    const tick = await deliverer(services())
    const [delivery] = await allIn(tick, webhook_id, 'delivered')
    await tick()
    expect(receiver.arrived).toHaveLength(1)
    const [{ headers, body, id }] = receiver.arrived as [Arrived]
    expect(id).toBe(delivery?.delivery_id)
    expect(JSON.parse(body)).toEqual({
      type: 'job.succeeded',
      timestamp: expect.any(String),
      data: {
        job_id: jobId,
        run_id: expect.any(String),
        kind: 'work',
        queue: expect.any(String),
        user_id: 'local',
        state: 'SUCCEEDED',
        attempt: 1,
        retry_count: 0,
        labels: { team: 'a' },
        error: null,
        created_at: expect.any(String),
        finished_at: expect.any(String),
      },
    })
    expect(headers['content-type']).toBe('application/json')
    const signed = { headers, body: Buffer.from(body), nowMs: Date.now() }
    expect(verifyDelivery('standard', secret, signed)).toMatchObject({ kind: 'verified', delivery: { deliveryId: id } })
    expect(delivery).toMatchObject({
      type: 'job.succeeded',
      job_id: jobId,
      attempts: 1,
      last_status: 204,
      last_error: null,
    })
  })

  test('only ends of jobs are told, not runs that are retried or given back', async () => {
    const { webhook_id } = await listen()
    const queue = unique('q')
    const retried = await endJob(services(), 'fail', { queue })
    const released = await endJob(services(), 'release')
    const dead = await endJob(services(), 'fail for good')
    const canceled = await services().submission.submit(
      LOCAL_ADMIN,
      { kind: 'work', queue: unique('q') },
      { key: null },
    )
    if (canceled.kind === 'refused') throw new Error('It was refused')
    await services().jobs.cancel(LOCAL_ADMIN, canceled.jobId)
    await allIn(await deliverer(services()), webhook_id, 'delivered', 2)
    expect(receiver.arrived.map(({ type, jobId }) => [type, jobId]).sort()).toEqual(
      [
        ['job.failed', dead],
        ['job.canceled', canceled.jobId],
      ].sort(),
    )
    expect(receiver.arrived.map(({ jobId }) => jobId)).not.toContain(retried)
    expect(receiver.arrived.map(({ jobId }) => jobId)).not.toContain(released)
  })

  test('a dead letter that a person retried before the leader looked is told, too', async () => {
    const { webhook_id } = await listen()
    const queue = unique('q')
    const jobId = await endJob(services(), 'fail for good', { queue })
    await services().deadLetters.retry(LOCAL_ADMIN, jobId)
    await endRun(services(), queue, 'succeed')
    await allIn(await deliverer(services()), webhook_id, 'delivered', 2)
    expect(receiver.arrived.map(({ type }) => type)).toEqual(['job.failed', 'job.succeeded'])
  })

  test('a webhook gets only what its filter matches', async () => {
    const [queue, kind] = [unique('q'), unique('kind')]
    const filters = [{ queue }, { kind }, { label: { name: 'team', value: 'a' } }, { events: ['job.failed' as const] }]
    const webhooks = await Promise.all(filters.map((filter) => listen(filter)))
    const inQueue = await endJob(services(), 'succeed', { queue })
    const ofKind = await endJob(services(), 'succeed', { kind })
    const labelled = await endJob(services(), 'succeed', { labels: { team: 'a' } })
    await endJob(services(), 'succeed', { labels: { team: 'b' } })
    const failed = await endJob(services(), 'fail for good')
    const tick = await deliverer(services())
    const got = await Promise.all(webhooks.map(({ webhook_id }) => allIn(tick, webhook_id, 'delivered')))
    expect(got.map(([delivery]) => delivery?.job_id)).toEqual([inQueue, ofKind, labelled, failed])
  })

  /** Transactions of other databases delay the place from which a new webhook gets ends. */
  async function settled(): Promise<void> {
    if (engine === 'sqlite') return
    const text = `SELECT max(ended_tx) < pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS settled FROM ichido.ended`
    await until('older transactions to end', async () => (await sql(store(), text))[0]?.settled)
  }

  test('a webhook gets the ends after it was made, in batches of any size, each once', async () => {
    await endJob(services())
    await settled()
    const { webhook_id } = await listen()
    const jobs: string[] = []
    for (let i = 0; i < 5; i++) jobs.push(await endJob(services()))
    const found = await allIn(await deliverer(services(), { batchMax: 2 }), webhook_id, 'delivered', 5)
    expect(found.map(({ job_id }) => job_id).sort()).toEqual(jobs.toSorted())
    await settled()
    const late = await listen()
    await (await deliverer(services()))()
    expect(await deliveries(late.webhook_id)).toEqual([])
    expect(receiver.arrived).toHaveLength(5)
  })

  test('a receiver that is down gets the message later, with the same id', async () => {
    const { webhook_id } = await listen()
    await receiver.close()
    await endJob(services())
    const tick = await deliverer(services())
    const tried = await delivering(
      tick,
      'a try',
      async () => (await deliveries(webhook_id))[0]?.attempts === 1 && onlyDelivery(webhook_id),
    )
    expect(tried).toMatchObject({
      state: 'pending',
      last_status: null,
      last_error: expect.stringContaining('ECONNREFUSED'),
    })
    expect(Date.parse(tried?.next_at ?? '')).toBeGreaterThan(Date.now())
    await receiver.listen()
    await waitOver(services())
    const [delivery] = await allIn(tick, webhook_id, 'delivered')
    expect(delivery).toMatchObject({ delivery_id: tried?.delivery_id, attempts: 2, last_error: null })
    expect(receiver.arrived.map(({ id }) => id)).toEqual([tried?.delivery_id])
  })

  test('500 and then 200: each try has the same id and body', async () => {
    const { webhook_id } = await listen()
    receiver.answer = () => (receiver.arrived.length === 1 ? 500 : 200)
    await endJob(services())
    const tick = await deliverer(services())
    await delivering(tick, 'a try', async () => (await onlyDelivery(webhook_id))?.last_status === 500)
    await waitOver(services())
    await allIn(tick, webhook_id, 'delivered')
    expect(receiver.arrived).toHaveLength(2)
    expect(new Set(receiver.arrived.map(({ id, body }) => id + body)).size).toBe(1)
  })

  test('a redirect to cloud metadata is not followed', async () => {
    const { webhook_id } = await listen()
    receiver.answer = () => (response) =>
      response.writeHead(302, { location: 'http://169.254.169.254/latest/meta-data/' }).end()
    await endJob(services())
    const hosts: string[] = []
    const watching: Courier = {
      resolve: (host) => courier.resolve(host),
      post: (message, signal) => {
        hosts.push(`${message.address} ${message.url.host}`)
        return courier.post(message, signal)
      },
    }
    const tick = await deliverer(services(), { courier: watching })
    await delivering(tick, 'a try', async () => (await onlyDelivery(webhook_id))?.last_status === 302)
    expect(await onlyDelivery(webhook_id)).toMatchObject({
      state: 'pending',
      last_error: expect.stringContaining('redirects'),
    })
    expect(hosts).toEqual([`127.0.0.1 ${new URL(receiver.url).host}`])
  })

  test('a name that leads to a private address later gets nothing', async () => {
    const answers = [['203.0.114.1'], ['203.0.114.1', '169.254.169.254']]
    const posted: string[] = []
    const rebinding: Courier = {
      resolve: async () => answers.shift() ?? ['127.0.0.1'],
      post: async ({ address }) => {
        posted.push(address)
        return 200
      },
    }
    services().deps.courier = rebinding
    const { services: other } = await testServices(
      engine,
      { courier: rebinding },
      { store: store(), remove: async () => {} },
    )
    const { webhook_id } = await other.webhooks.create(LOCAL_ADMIN, { url: 'https://rebinding.example/' })
    await endJob(services())
    const tick = await deliverer(services(), { courier: rebinding, allowPrivate: false })
    await delivering(tick, 'a try', async () => (await onlyDelivery(webhook_id))?.attempts === 1)
    expect((await onlyDelivery(webhook_id))?.last_error).toContain('169.254.169.254, a private or reserved address')
    await waitOver(services())
    await delivering(tick, 'a second try', async () => (await onlyDelivery(webhook_id))?.attempts === 2)
    expect((await onlyDelivery(webhook_id))?.last_error).toContain('127.0.0.1, a private or reserved address')
    expect(posted).toEqual([])
  })

  test('a message is sent to the address that was checked', async () => {
    const lookups: string[] = []
    const pinning: Courier = {
      resolve: async (host) => {
        lookups.push(host)
        return ['127.0.0.1']
      },
      post: (message, signal) => courier.post(message, signal),
    }
    const { webhook_id } = await listen()
    // No resolver knows this name, so a second lookup would fail.
    const url = receiver.url.replace('127.0.0.1', 'receiver.invalid')
    await sql(store(), 'UPDATE ichido.webhooks SET url = $1', url)
    await endJob(services())
    await allIn(await deliverer(services(), { courier: pinning }), webhook_id, 'delivered')
    expect(lookups).toEqual(['receiver.invalid'])
    expect(receiver.arrived[0]?.headers.host).toBe(new URL(url).host)
  })

  test.each<[string, (response: ServerResponse) => void]>([
    ['never answers', () => {}],
    ['drips the head of its answer', ({ socket }) => void socket?.write('HTTP/1.1 200 OK\r\nx-slow: ')],
  ])('a receiver that %s times out, and does not delay another one', async (_, answer) => {
    const timeouts: (() => void)[] = []
    const world = {
      ...realWorld,
      after: (ms: number, callback: () => void) => {
        if (ms === 15_000) timeouts.push(callback)
        return ms === 15_000 ? () => {} : realWorld.after(ms, callback)
      },
    }
    const slow = await Receiver.open()
    slow.answer = () => answer
    try {
      const { webhook_id: slowId } = await listen({ url: slow.url })
      const { webhook_id } = await listen()
      await endJob(services())
      const tick = await deliverer(services(), { world })
      await until('the slow receiver to be asked', async () => {
        await tick()
        return slow.arrived.length
      })
      await allIn(tick, webhook_id, 'delivered')
      expect(await onlyDelivery(slowId)).toMatchObject({ state: 'pending', attempts: 0 })
      for (const timeout of timeouts) timeout()
      await until('the timeout', async () => (await onlyDelivery(slowId))?.attempts === 1)
      expect(await onlyDelivery(slowId)).toMatchObject({ state: 'pending', last_error: 'No answer in 15 s' })
    } finally {
      await slow.close()
    }
  })

  test('an answer whose body never ends counts by its status', async () => {
    const timeouts: (() => void)[] = []
    const world = {
      ...realWorld,
      after: (ms: number, callback: () => void) => {
        if (ms === 15_000) timeouts.push(callback)
        return ms === 15_000 ? () => {} : realWorld.after(ms, callback)
      },
    }
    const { webhook_id } = await listen()
    receiver.answer = () => (response) => response.writeHead(200).write('more is to come')
    let heads = 0
    const count = () => {
      heads++
    }
    subscribe('http.client.response.finish', count)
    await endJob(services())
    const tick = await deliverer(services(), { world })
    await delivering(tick, 'the message', async () => receiver.arrived.length === 1)
    await until('the head of the answer', async () => heads > 0)
    unsubscribe('http.client.response.finish', count)
    for (const timeout of timeouts) timeout()
    await until('the answer', async () => (await onlyDelivery(webhook_id))?.attempts === 1)
    expect(await onlyDelivery(webhook_id)).toMatchObject({ state: 'delivered', last_status: 200, last_error: null })
  })

  test('an answer without end is cut off after its status, and a head without end is no answer', async () => {
    const { webhook_id } = await listen()
    let cutOff = 0
    const flood = 'x'.repeat(100_000)
    receiver.answer = () => (response) => {
      response.on('close', () => cutOff++)
      if (receiver.arrived.length > 1) response.socket?.write(`HTTP/1.1 200 OK\r\nx-flood: ${flood}`)
      else {
        const more = () => response.write(flood) && setImmediate(more)
        response.writeHead(200).on('drain', more)
        more()
      }
    }
    await endJob(services())
    const tick = await deliverer(services())
    await allIn(tick, webhook_id, 'delivered')
    await until('the end of the connection', async () => cutOff === 1)
    await endJob(services())
    await delivering(tick, 'a failed try', async () => {
      const [, second] = await deliveries(webhook_id)
      return second?.attempts === 1 && second.last_status === null && second.last_error !== null
    })
    await until('the end of the connection', async () => cutOff === 2)
  })

  test('a receiver that switches protocols instead of answering fails at once', async () => {
    const { webhook_id } = await listen()
    receiver.answer = () => (response) =>
      response.socket?.end('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n')
    await endJob(services())
    const tick = await deliverer(services())
    await delivering(tick, 'a failed try', async () => (await onlyDelivery(webhook_id))?.attempts === 1)
    expect(await onlyDelivery(webhook_id)).toMatchObject({ state: 'pending', last_status: null })
  })

  test('receivers that never answer leave room for the others', async () => {
    const timeouts = new Map<string, (() => void)[]>()
    const [queue, healthy] = [unique('q'), unique('q')]
    // Four hosts fill all places for messages on their way. Each has more messages than places.
    for (let i = 0; i < 4; i++) {
      const { webhook_id: silent } = await listen({ queue })
      const [url, id] = [`http://silent-${i}.invalid/`, silent]
      await sql(store(), 'UPDATE ichido.webhooks SET url = $1 WHERE id = $2', url, id)
    }
    const { webhook_id } = await listen({ queue: healthy })
    const deaf: Courier = {
      resolve: async () => ['127.0.0.1'],
      post: ({ url, ...message }, signal) => {
        if (!url.hostname.startsWith('silent')) return courier.post({ url, ...message }, signal)
        return new Promise((_, reject) => {
          const fail = () => reject(new Error('No answer'))
          timeouts.set(url.hostname, [...(timeouts.get(url.hostname) ?? []), fail])
        })
      },
    }
    for (let i = 0; i < 12; i++) await endJob(services(), 'succeed', { queue })
    const tick = await deliverer(services(), { courier: deaf })
    await delivering(tick, 'all places to be taken', async () => [...timeouts.values()].flat().length === 16)
    await endJob(services(), 'succeed', { queue: healthy })
    // Each of them times out once. Their next messages must not take all places again.
    for (const fail of [...timeouts.values()].flat()) fail()
    await allIn(tick, webhook_id, 'delivered')
  })

  test('messages about one job arrive in their order, even if the first one fails', async () => {
    const { webhook_id } = await listen()
    receiver.answer = ({ type }) => (type === 'job.failed' && receiver.arrived.length === 1 ? 500 : 200)
    const queue = unique('q')
    const jobId = await endJob(services(), 'fail for good', { queue })
    const tick = await deliverer(services())
    await delivering(tick, 'a try', async () => (await onlyDelivery(webhook_id))?.last_status === 500)
    await services().deadLetters.retry(LOCAL_ADMIN, jobId)
    await endRun(services(), queue, 'succeed')
    const other = await endJob(services())
    // The message about another job overtakes, the second message about this job does not.
    await delivering(tick, 'the other job', async () => receiver.arrived.some((one) => one.jobId === other))
    expect(await deliveries(webhook_id)).toHaveLength(3)
    await tick()
    await waitOver(services())
    await allIn(tick, webhook_id, 'delivered', 3)
    const own = receiver.arrived.filter((one) => one.jobId === jobId)
    expect(own.map(({ type }) => type)).toEqual(['job.failed', 'job.failed', 'job.succeeded'])
  })

  test('after the last try a delivery is dead, and can be redriven with its id', async () => {
    const { webhook_id } = await listen()
    receiver.answer = () => 503
    await endJob(services())
    const tick = await deliverer(services())
    for (let tries = 1; tries <= 11; tries++) {
      await delivering(tick, `try ${tries}`, async () => (await onlyDelivery(webhook_id))?.attempts === tries)
      await waitOver(services())
    }
    const [dead] = await allIn(tick, webhook_id, 'dead')
    expect(dead).toMatchObject({ attempts: 11, next_at: null, last_status: 503, ended_at: expect.any(String) })
    expect(await services().webhooks.counts()).toEqual({ pending: 0, dead: 1 })
    receiver.answer = () => 200
    expect(await services().webhooks.redriveDead(LOCAL_ADMIN, webhook_id)).toEqual({ redriven: 1 })
    const [delivered] = await allIn(tick, webhook_id, 'delivered')
    expect(delivered).toMatchObject({ delivery_id: dead?.delivery_id, attempts: 12 })
    expect(new Set(receiver.arrived.map(({ id }) => id)).size).toBe(1)
    await services().webhooks.redrive(LOCAL_ADMIN, webhook_id, dead?.delivery_id ?? '')
    expect(await allIn(tick, webhook_id, 'delivered')).toMatchObject([{ attempts: 13 }])
  })

  test('410 Gone disables the webhook; enabled again, it gets the rest and what ends from then on', async () => {
    const { webhook_id } = await listen()
    receiver.answer = () => 410
    await endJob(services())
    const tick = await deliverer(services())
    await delivering(tick, 'the end of the webhook', async () => !(await services().webhooks.get(webhook_id)).enabled)
    expect(await services().webhooks.get(webhook_id)).toMatchObject({
      disabled_reason: 'The receiver answered 410 Gone',
    })
    await endJob(services())
    await tick()
    await settled()
    receiver.answer = () => 200
    await services().webhooks.change(LOCAL_ADMIN, webhook_id, { enabled: true })
    const later = await endJob(services())
    await waitOver(services())
    const found = await allIn(tick, webhook_id, 'delivered', 2)
    expect(found.at(-1)?.job_id).toBe(later)
  })

  test('after a rotation messages are signed with both secrets, until the overlap is over', async () => {
    const { webhook_id, secret: old } = await listen()
    const { secret } = await services().webhooks.rotate(LOCAL_ADMIN, webhook_id)
    const tick = await deliverer(services())
    await services().webhooks.test(webhook_id)
    await allIn(tick, webhook_id, 'delivered')
    await sql(store(), 'UPDATE ichido.webhooks SET old_secret_until = 1')
    await services().webhooks.test(webhook_id)
    await allIn(tick, webhook_id, 'delivered', 2)
    const verdicts = receiver.arrived.map(({ headers, body }) =>
      [old, secret].map(
        (one) => verifyDelivery('standard', one, { headers, body: Buffer.from(body), nowMs: Date.now() }).kind,
      ),
    )
    expect(verdicts).toEqual([
      ['verified', 'verified'],
      ['refused', 'verified'],
    ])
  })

  test('a job that is deleted before the leader looked is told', async () => {
    const { webhook_id } = await listen()
    const jobId = await endJob(services())
    expect(await services().jobs.delete(LOCAL_ADMIN, jobId)).toBe('deleted')
    const found = await allIn(await deliverer(services()), webhook_id, 'delivered')
    expect(found[0]?.job_id).toBe(jobId)
  })

  test('a job whose events are removed before the leader looked is told', async () => {
    const { webhook_id } = await listen()
    const jobId = await endJob(services())
    await sql(store(), 'UPDATE ichido.ended SET finished_at = 1 WHERE job_id = $1', jobId)
    await store().write(removeEvents(await seize(store()), [jobId], 1))
    const found = await allIn(await deliverer(services()), webhook_id, 'delivered')
    expect(found[0]?.job_id).toBe(jobId)
  })

  test('an alert that opens and closes is told to webhooks that ask for alerts', async () => {
    const { webhook_id } = await listen({ events: ['alert.opened', 'alert.closed'] })
    const { webhook_id: jobsOnly } = await listen()
    const term = await seize(store())
    const alert = {
      alertId: realWorld.uuid(),
      rule: 'loop_late' as const,
      subject: unique('loop'),
      message: 'It is late',
    }
    const turn = { keepMs: 0, batchMax: 10, open: [], close: [] }
    await store().write(turnAlerts(term, { ...turn, open: [alert] }))
    await store().write(turnAlerts(term, { ...turn, close: [alert.alertId] }))
    await allIn(await deliverer(services(), { leading: trusting(term) }), webhook_id, 'delivered', 2)
    expect(receiver.arrived.map(({ type }) => type)).toEqual(['alert.opened', 'alert.closed'])
    const { alertId: alert_id, rule, subject, message } = alert
    expect(JSON.parse(receiver.arrived[0]?.body ?? '').data).toEqual({ alert_id, rule, subject, message })
    expect(await deliveries(jobsOnly)).toEqual([])
  })

  test('retention removes delivered and dead deliveries, and no pending ones', async () => {
    const { webhook_id } = await listen()
    for (let i = 0; i < 3; i++) await services().webhooks.test(webhook_id)
    const [delivered, dead, pending] = await deliveries(webhook_id)
    const end = (id: string | undefined, state: string) =>
      sql(
        store(),
        'UPDATE ichido.webhook_deliveries SET state = $2, next_at = NULL, ended_at = 1 WHERE id = $1',
        id ?? '',
        state,
      )
    await end(delivered?.delivery_id, 'delivered')
    await end(dead?.delivery_id, 'dead')
    const term = await seize(store())
    expect(await store().write(removeDeliveries(term, 'delivered', 1_000, 10))).toBe(1)
    expect((await deliveries(webhook_id)).map(({ state }) => state).sort()).toEqual(['dead', 'pending'])
    expect(await store().write(removeDeliveries(term, 'dead', 1_000, 10))).toBe(1)
    expect(await deliveries(webhook_id)).toEqual([pending])
  })

  test('a former leader records nothing and derives nothing', async () => {
    const { webhook_id } = await listen()
    let answer = (_: number) => {}
    const late = new Promise<number>((resolve) => {
      answer = resolve
    })
    receiver.answer = () => (receiver.arrived.length === 1 ? late : 200)
    await endJob(services())
    const former = await deliverer(services(), { leading: trusting(await seize(store())) })
    await delivering(former, 'the first message', async () => receiver.arrived.length === 1)
    const tick = await deliverer(services())
    const found = await allIn(tick, webhook_id, 'delivered')
    answer(500)
    await endJob(services())
    await former()
    await former()
    expect(await deliveries(webhook_id)).toEqual(found)
    expect(receiver.arrived.map(({ id }) => id)).toEqual([found[0]?.delivery_id, found[0]?.delivery_id])
  })
})
