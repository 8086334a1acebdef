import { afterAll, beforeAll, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import type { PostgresStore } from '../../../src/store/engines/postgres/postgres.ts'
import { Receiver } from '../../../src/testing/http/receiver.ts'
import { courier, endJob, endRun } from '../../../src/testing/nodes/deliverer.ts'
import { NodeProcess } from '../../../src/testing/nodes/node-process.ts'
import { type TestServices, testServices } from '../../../src/testing/services/services.ts'
import { openNode, unique, until } from '../../../src/testing/store/store.ts'

/** Real processes on PostgreSQL: the leader is killed while its messages are on their way. */

const JOBS = 6
let database: FreshDatabase
let store: PostgresStore
let opened: TestServices
let receiver: Receiver
const nodes: NodeProcess[] = []

beforeAll(async () => {
  database = await freshDatabase()
  store = await openNode(database.url)
  opened = await testServices('postgres', { courier }, { store, remove: async () => {} })
  receiver = await Receiver.open()
  await opened.services.settings.put(LOCAL_ADMIN, 'webhooks_allow_private', 1)
  for (let i = 0; i < 2; i++) nodes.push(await NodeProcess.start(database.url))
})
afterAll(async () => {
  for (const node of nodes) await node.end('SIGKILL')
  await receiver.close()
  await opened.close()
  await database.leave()
})

test('messages to callbacks in flight when the leader is killed are sent again with their ids', async () => {
  const { services } = opened
  receiver.answer = () => () => {}
  const jobs: string[] = []
  for (let i = 0; i < JOBS; i++) jobs.push(await endJob(services, 'succeed', { callback_url: receiver.url }))
  await until('messages in flight', async () => receiver.arrived.length >= 4)
  const unanswered = receiver.arrived.map(({ id }) => id)
  const leader = await until('the leader', async () => nodes.find(({ standing }) => standing?.leads))
  receiver.answer = () => 204
  await leader.end('SIGKILL')
  nodes.push(await NodeProcess.start(database.url))
  const delivered = await until('all deliveries', async () => {
    const { data } = await services.callbacks.list('delivered', 200, null)
    return data.length === JOBS && data
  })
  expect(delivered.map(({ job_id }) => job_id).sort()).toEqual(jobs.toSorted())
  expect(new Set(receiver.arrived.map(({ id }) => id))).toEqual(
    new Set(delivered.map(({ delivery_id }) => delivery_id)),
  )
  for (const id of unanswered) expect(receiver.arrived.filter((one) => one.id === id).length).toBeGreaterThan(1)
  receiver.arrived.length = 0
})

test('messages in flight when the leader is killed are sent again with their ids, each job in order', async () => {
  const { services } = opened
  const { webhook_id } = await services.webhooks.create(LOCAL_ADMIN, { url: receiver.url })
  // No answer reaches the first leader.
  receiver.answer = () => () => {}
  const jobs: string[] = []
  for (let i = 0; i < JOBS; i++) {
    const queue = unique('q')
    jobs.push(await endJob(services, 'fail for good', { queue }))
    await services.deadLetters.retry(LOCAL_ADMIN, jobs.at(-1) ?? '')
    await endRun(services, queue, 'succeed')
  }
  await until('messages in flight', async () => receiver.arrived.length >= 4)
  const unanswered = receiver.arrived.map(({ id }) => id)
  const leader = await until('the leader', async () => nodes.find(({ standing }) => standing?.leads))
  receiver.answer = () => 204
  await leader.end('SIGKILL')
  const delivered = await until('all deliveries', async () => {
    const { data } = await services.webhooks.deliveries(webhook_id, 'delivered', 200, null)
    return data.length === 2 * JOBS && data
  })
  const ids = delivered.map(({ delivery_id }) => delivery_id)
  expect(delivered.map(({ job_id }) => job_id).sort()).toEqual([...jobs, ...jobs].sort())
  // One id for each end, also for those that arrived twice.
  expect(new Set(receiver.arrived.map(({ id }) => id))).toEqual(new Set(ids))
  for (const id of unanswered) expect(receiver.arrived.filter((one) => one.id === id).length).toBeGreaterThan(1)
  for (const jobId of jobs) {
    const types = receiver.arrived.filter((one) => one.jobId === jobId).map(({ type }) => type)
    expect(new Set(types)).toEqual(new Set(['job.failed', 'job.succeeded']))
    expect(types.lastIndexOf('job.failed')).toBeLessThan(types.indexOf('job.succeeded'))
  }
})
