import { expect, onTestFinished, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import { registered } from '../../testing/services/workers.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { DEFAULT_LIMITS } from '../deps.ts'
import { createServices } from '../index.ts'
import { silentMeter } from '../system/meter.ts'

/** Polls of a draining worker wait, but take no turn of other polls. */

/** A draining worker and another one, on a node with a fake clock. Time passes only when a test says so. */
async function scene() {
  const world = new FakeWorld()
  const store = openSqlite({ now: () => world.now() })
  onTestFinished(() => store.close())
  const bus = new EmbeddedBus()
  const services = createServices({ world, store, bus, meter: silentMeter, limits: DEFAULT_LIMITS })
  const { worker_id: draining } = await registered(services)
  const { worker_id: other } = await registered(services)
  await services.workers.drain(LOCAL_ADMIN, draining)
  const answers: { workerId: string; jobs: string[] }[] = []
  const poll = async (workerId: string, changes: object = {}) => {
    const request = { queues: ['q'], kinds: ['work'], max: 1, waitMs: 20_000, ...changes }
    void services.runs.lease(workerId, request).then((leases) => {
      answers.push({ workerId, jobs: leases.map(({ job_id }) => job_id) })
    })
    await settled()
  }
  const submit = async () => {
    const outcome = await services.submission.submit(LOCAL_ADMIN, { kind: 'work', queue: 'q' }, { key: null })
    await settled()
    return 'jobId' in outcome ? outcome.jobId : ''
  }
  return { world, bus, services, draining, other, answers, poll, submit }
}

test('a job goes at once to the next poll, however much the draining one asks for', async () => {
  const { draining, other, answers, poll, submit } = await scene()
  await poll(draining, { max: 1_000 })
  await poll(other)
  const first = await submit()
  expect(answers).toEqual([{ workerId: other, jobs: [first] }])
  await poll(other)
  const second = await submit()
  expect(answers[1]).toEqual({ workerId: other, jobs: [second] })
})

test('the poll ends empty after its time, and one that does not wait ends at once', async () => {
  const { world, draining, answers, poll, submit } = await scene()
  await submit()
  await poll(draining, { waitMs: 0 })
  expect(answers).toEqual([{ workerId: draining, jobs: [] }])
  await poll(draining)
  await world.pass(19_000)
  expect(answers).toHaveLength(1)
  await world.pass(1_000)
  expect(answers).toEqual(Array(2).fill({ workerId: draining, jobs: [] }))
})

test('a resume gives the waiting poll its job at once', async () => {
  const { services, draining, answers, poll, submit } = await scene()
  const job = await submit()
  await poll(draining)
  await services.workers.resume(LOCAL_ADMIN, draining)
  await settled()
  expect(answers).toEqual([{ workerId: draining, jobs: [job] }])
})

test('a resume whose wake-up got lost gives the job within five seconds', async () => {
  const { world, bus, services, draining, answers, poll, submit } = await scene()
  const job = await submit()
  await poll(draining)
  bus.wake = () => {}
  await services.workers.resume(LOCAL_ADMIN, draining)
  await world.pass(5_000)
  expect(answers).toEqual([{ workerId: draining, jobs: [job] }])
})

test('a poll whose caller leaves while it drains takes no job after the resume', async () => {
  const { services, draining, other, answers, poll, submit } = await scene()
  const job = await submit()
  const leaving = new AbortController()
  const request = { queues: ['q'], kinds: ['work'], max: 1, waitMs: 20_000 }
  const left = services.runs.lease(draining, request, leaving.signal)
  await settled()
  leaving.abort()
  expect(await left).toEqual([])
  await services.workers.resume(LOCAL_ADMIN, draining)
  await poll(other)
  expect(answers).toEqual([{ workerId: other, jobs: [job] }])
})
