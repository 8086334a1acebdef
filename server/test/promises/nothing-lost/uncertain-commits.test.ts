import { createHash, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import pg from 'pg'
import { v7 } from 'uuid'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Link, TcpProxy } from '../../../../scripts/testing/proxy.ts'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { createToken, findToken } from '../../../src/store/access/access.ts'
import { body } from '../../../src/store/conformance/submit.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { publishBatch } from '../../../src/store/events/publish.ts'
import { cancelJob } from '../../../src/store/jobs/cancel-or-delete.ts'
import { findQuota, findReservation, setQuota } from '../../../src/store/limits/quotas.ts'
import type { Command } from '../../../src/store/port.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import { consumeSlot, releaseSlot, reserveSlot } from '../../../src/store/submission/reservations.ts'
import { submitAndLease } from '../../../src/store/submission/submit-and-lease.ts'
import { submitJobs } from '../../../src/store/submission/submit-jobs.ts'
import { changeSetting } from '../../../src/store/system/settings.ts'
import { recordTriggers } from '../../../src/store/triggers/triggers.ts'
import { createEnrollToken } from '../../../src/store/workers/workers.ts'
import { finished, leasesFor, only, renderForTest, Scene } from '../../../src/testing/store/scene.ts'
import { openNode, sql, unique, until } from '../../../src/testing/store/store.ts'

/** Hazard 10: the connection breaks around a COMMIT. Whether or not it succeeded, the caller sees one effect, once. */

const CUTS = {
  'before the COMMIT arrives': 'lost',
  'after the COMMIT, before its answer': 'unheard',
  'and the COMMIT arrives later, during the retry': 'late',
} as const
type Cut = (typeof CUTS)[keyof typeof CUTS]

let database: FreshDatabase
let proxy: TcpProxy
let node: PostgresStore
let observer: pg.Client
let scene: Scene

beforeAll(async () => {
  database = await freshDatabase()
  const proxied = await TcpProxy.before(database.tcpUrl)
  proxy = proxied.proxy
  node = await openNode(proxied.url)
  observer = new pg.Client(database.url)
  await observer.connect()
})

afterAll(async () => {
  await node.close()
  await proxy.close()
  await observer.end()
  await database.leave()
})

beforeEach(() => {
  scene = new Scene(node)
})

/** Runs the command over a connection that is cut once, when the command commits. */
async function cutOnce<T>(cut: Cut, command: Command<T>): Promise<T> {
  let [armed, delivered] = [true, Promise.resolve()]
  const answered = Promise.withResolvers<void>()
  proxy.rule = ({ direction, data, link }) => {
    if (!armed || direction !== 'up' || !(isCommit(data) || isOneStatement(data))) return 'pass'
    armed = false
    if (cut === 'lost') return 'cut'
    const server = link.vanish()
    // A single-statement transaction holds no lock before it arrives, so it is delivered after the retry has finished.
    const delivery = isOneStatement(data) ? answered.promise : retryWaits()
    delivered = (cut === 'late' ? delivery : Promise.resolve()).then(async () => {
      server.end(data)
      server.resume()
      await once(server, 'close')
    })
    return 'hold'
  }
  const answer = await node.write(command)
  answered.resolve()
  expect(armed, 'it was cut').toBe(false)
  await delivered
  proxy.rule = () => 'pass'
  return answer
}

/** The whole statement with its terminator, because every BEGIN contains the words READ COMMITTED. */
const isCommit = (data: Buffer) => data.includes('COMMIT\0')

/** A transaction in a single statement. */
const isOneStatement = (data: Buffer) =>
  /_(submit_plain|submit_and_lease|lease_plain|finish_plain)/.test(data.toString('latin1'))

/** The retry waits for the transaction that is still open. */
async function retryWaits(): Promise<void> {
  const text = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
  await until('the retry to wait for the first try', async () => (await observer.query(text)).rowCount)
}

describe.each(Object.entries(CUTS))('cut %s', (_, cut) => {
  test('a submit with a key creates one job, and a replay returns the same body', async () => {
    const item = scene.item({ key: 'k' })
    const outcome = only(await cutOnce(cut, submitJobs([item], renderForTest)))
    expect(outcome).toMatchObject({ kind: 'created', jobId: item.jobId })
    expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', body: body(outcome) })
    expect(await jobs()).toEqual([item.jobId])
  })

  test('events are stored once, and the publisher is not told that they were duplicates', async () => {
    const lease = await scene.running()
    const events = [1, 2].map((seq) => ({ stage: 'progress', seq, data: String(seq) }))
    const items = [{ ...scene.startItem(lease), events }]
    expect(await cutOnce(cut, publishBatch(items, false))).toMatchObject([
      { kind: 'stored', events: [{ n: 3 }, { n: 4 }] },
    ])
    expect(await node.write(publishBatch(items, true))).toMatchObject([{ kind: 'stored', events: [null, null] }])
    expect((await scene.events(lease.jobId)).slice(2)).toEqual([1, 2])
  })

  test('one submit of a known user without a key creates one job', async () => {
    await scene.submitted()
    const item = scene.item()
    expect(await cutOnce(cut, submitJobs([item], renderForTest))).toMatchObject([
      { kind: 'created', jobId: item.jobId },
    ])
    expect(await jobs()).toHaveLength(2)
  })

  test('several submits of a known user, with and without a key, create one job each', async () => {
    await scene.submitted()
    const items = [scene.item(), scene.item(), scene.item({ key: 'k' }), scene.item({ key: 'k' })]
    const outcomes = await cutOnce(cut, submitJobs(items, renderForTest))
    expect(outcomes.map(({ kind }) => kind)).toEqual(['created', 'created', 'created', 'replayed'])
    expect(await jobs()).toHaveLength(4)
  })

  test('submit-and-lease creates one job, and the waiting poll gets it', async () => {
    await scene.cancel(await scene.submitted())
    const [item, poll] = [scene.item({ key: 'k' }), scene.leaseItem()]
    const submitted = await cutOnce(cut, submitAndLease([item], { polls: [poll], from: null }, renderForTest))
    expect(submitted).toMatchObject({ kind: 'unheard', outcomes: [{ kind: 'created', jobId: item.jobId }] })
    expect(await node.write(leasesFor([poll]))).toMatchObject([[{ jobId: item.jobId, attempt: 1 }]])
    expect(await jobs()).toHaveLength(2)
  })

  test('triggers are recorded once, and the sender is not told that they were duplicates', async () => {
    const [topic, sent] = [unique('topic'), { userId: scene.userId, operates: false, data: '{}' }]
    const items = ['b', 'a'].map((dedupeKey) => ({ triggerId: v7(), topic, dedupeKey, ...sent }))
    const recorded = await cutOnce(cut, recordTriggers(items))
    expect(recorded.map(({ triggerId, duplicate }) => [triggerId, duplicate])).toEqual(
      items.map(({ triggerId }) => [triggerId, false]),
    )
    expect(await sql(node, 'SELECT id FROM ichido.triggers WHERE topic = $1', topic)).toHaveLength(2)
  })

  test('a reservation takes one slot', async () => {
    await node.write(setQuota(scene.userId, { maxConcurrent: 1, costLimitMicros: null, period: 'day' }))
    const reservationId = v7()
    const outcome = await cutOnce(cut, reserveSlot(reservationId, scene.userId, 60_000))
    expect(outcome).toMatchObject({ kind: 'reserved', reservation: { reservationId, state: 'active' } })
    expect(await node.read(findQuota(scene.userId))).toMatchObject({ activeReservations: 1 })
    const released = await cutOnce(cut, releaseSlot(reservationId, scene.userId))
    expect(released).toMatchObject({ reservation: { state: 'released' } })
    const another = v7()
    await scene.reserve(60_000, another)
    await node.write(setQuota(scene.userId, { maxConcurrent: null, costLimitMicros: null, period: 'day' }))
    const jobId = await scene.submitted()
    expect(await cutOnce(cut, consumeSlot(another, scene.userId, jobId))).toMatchObject({ reservation: { jobId } })
    expect(await node.read(findReservation(another))).toMatchObject({ state: 'consumed' })
  })

  test('a poll gets the number of runs it asked for, and no other run is assigned', async () => {
    for (let i = 0; i < 5; i++) await scene.submitted()
    const leases = only(await cutOnce(cut, leasesFor([scene.leaseItem({ max: 2 })])))
    expect(leases.map(({ attempt }) => attempt)).toEqual([1, 1])
    const assigned = await sql(
      node,
      `SELECT id FROM ichido.runs WHERE queue = $1 AND state = 'ASSIGNED' ORDER BY id`,
      scene.queue,
    )
    expect(assigned.map(({ id }) => id)).toEqual(leases.map(({ runId }) => runId).sort())
  })

  test('a start takes effect once', async () => {
    await scene.submitted()
    const lease = await scene.leased()
    const outcome = only(await cutOnce(cut, startBatch([scene.startItem(lease)])))
    expect(outcome).toMatchObject({ version: 3, attempt: 1 })
    expect(await scene.events(lease.jobId)).toHaveLength(3)
  })

  test('a plain report is recorded once', async () => {
    const [done, lost] = [await scene.running(), await scene.running()]
    await scene.finish(lost)
    const items = [scene.endItem(done, finished()), scene.endItem(lost, finished({ result: '"other"' }))]
    const outcomes = await cutOnce(cut, finishBatch(items))
    expect(outcomes).toMatchObject([{ state: 'SUCCEEDED' }, { kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' }])
    expect(await scene.events(done.jobId)).toHaveLength(3)
  })

  test('a report with a cost or a failure is recorded once', async () => {
    const [done, broken] = [await scene.running(), await scene.running()]
    const [outcome] = await cutOnce(cut, finishBatch([scene.endItem(done, finished({ costMicros: 5 }))]))
    expect(outcome).toMatchObject({ kind: cut === 'lost' ? 'recorded' : 'repeated', state: 'SUCCEEDED' })
    const [failure] = await cutOnce(
      cut,
      finishBatch([scene.endItem(broken, { verb: 'fail', error: { code: 'X', message: '' }, retryable: true })]),
    )
    expect(failure).toMatchObject({ state: 'FAILED' })
    expect(await scene.runs(broken.jobId)).toHaveLength(2)
    expect(await node.read(findQuota(scene.userId))).toMatchObject({ spentMicros: 5 })
  })

  test('a cancel returns the estimated cost once', async () => {
    const jobId = await scene.submitted({ estimatedCostMicros: 3 })
    await scene.submitted({ estimatedCostMicros: 4 })
    expect((await cutOnce(cut, cancelJob(jobId, by()))).kind).toBe(cut === 'lost' ? 'canceled' : 'repeated')
    expect(await told(jobId)).toEqual(['job.cancel'])
    expect(await node.read(findQuota(scene.userId))).toMatchObject({ spentMicros: 4 })
  })

  test('a token is created once, and its secret works', async () => {
    const tokenHash = createHash('sha256').update(randomUUID()).digest('hex')
    const token = { tokenId: v7(), tokenHash, userId: unique('user'), role: 'viewer', name: 'n', ttlMs: null } as const
    await cutOnce(cut, createToken(token, by()))
    expect(await told(token.tokenId)).toEqual(['token.create'])
    expect(await node.read(findToken(tokenHash))).toMatchObject({ userId: token.userId })
  })

  test('a setting, a quota and an enroll token change once, with one audit entry each', async () => {
    const [name, label] = [unique('setting'), unique('label')]
    await cutOnce(cut, changeSetting(name, 1, by()))
    expect(await told(name)).toEqual(['setting.put'])
    await cutOnce(cut, changeSetting(name, null, by()))
    expect(await told(name)).toEqual(['setting.put', 'setting.delete'])
    await cutOnce(cut, setQuota(scene.userId, { maxConcurrent: 1, costLimitMicros: null, period: 'day' }, by()))
    expect(await told(scene.userId)).toEqual(['quota.put'])
    const item = { tokenHash: unique('hash'), label, queues: null, createdBy: 'ann', ttlMs: 60_000, workerId: null }
    expect(await cutOnce(cut, createEnrollToken(item, by()))).toMatchObject({ kind: 'made' })
    expect(await told(label)).toEqual(['enroll_token.create'])
  })
})

test('with cuts at random places every submit is answered and every job exists once', async () => {
  let chunks = 0
  proxy.rule = ({ link }) => {
    if (++chunks % 37 !== 0) return 'pass'
    if (chunks % 2 === 0) return 'cut'
    // The chunk gets through, but the next statement finds the connection closed.
    setImmediate(() => link.cut())
    return 'pass'
  }
  const count = size(60, 2_000)
  const items = Array.from({ length: count }, (_, i) => scene.item({ key: i % 2 === 0 ? `k${i}` : null }))
  const outcomes: string[] = []
  async function submitter(from: number): Promise<void> {
    for (let i = from; i < count; i += 4) {
      const [outcome] = await node.write(submitJobs(items.slice(i, i + 1), renderForTest))
      outcomes.push(outcome?.kind ?? 'none')
    }
  }
  await Promise.all([0, 1, 2, 3].map(submitter))
  proxy.rule = () => 'pass'
  expect(chunks).toBeGreaterThan(37 * 5)
  expect(outcomes).toEqual(Array(count).fill('created'))
  expect(await jobs()).toEqual(items.map(({ jobId }) => jobId).sort())
})

test('a silent server is given up, and the work is done over another connection', async () => {
  let silent: Link | undefined
  proxy.rule = ({ direction, data, link }) => {
    if (silent === undefined && direction === 'up' && isCommit(data)) silent = link
    return silent === link ? 'hold' : 'pass'
  }
  expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'created' })
  expect(silent).toBeDefined()
  proxy.rule = () => 'pass'
  expect(await jobs()).toHaveLength(1)
})

const by = () => ({ id: v7(), actor: 'ann' })

async function told(subject: string): Promise<unknown[]> {
  const text = 'SELECT action FROM ichido.audit WHERE subject = $1 ORDER BY created_at, id'
  return (await sql(node, text, subject)).map(({ action }) => action)
}

async function jobs(): Promise<unknown[]> {
  const rows = await sql(node, 'SELECT id FROM ichido.jobs WHERE user_id = $1 ORDER BY id', scene.userId)
  return rows.map(({ id }) => id)
}
