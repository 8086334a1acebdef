import { expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { unique } from '../../testing/store/store.ts'

/** A lease is limited in bytes, and no poll waits for a timer because of it. */

/** No polling by time in this world: only wake-ups cause a look. */
const world = {
  ...realWorld,
  after: (ms: number, then: () => void) => (ms < 1_000 ? () => {} : realWorld.after(ms, then)),
}

const LARGE = 'x'.repeat(1_000_000)
const WORKERS = 5
const RUNS_OF_WORKER = 10

eachServices(
  ({ services, submit }) => {
    const [submitter, admin] = [callerOf('submitter'), callerOf('admin')]

    async function submitLarge(queue: string, count: number): Promise<void> {
      await Promise.all(Array.from({ length: count }, () => submit(submitter, { queue, payload: LARGE })))
    }

    /** How many runs a worker got. */
    async function lease(queues: string[], changes: object = {}): Promise<number> {
      const request = { queues, kinds: ['work'], max: RUNS_OF_WORKER, waitMs: 0, startId: 's', ...changes }
      const leases = await services().runs.lease(unique('worker'), request)
      return leases.length
    }

    test('workers that poll together all get some jobs', async () => {
      const queue = unique('queue')
      await submitLarge(queue, WORKERS * RUNS_OF_WORKER)
      const got = await Promise.all(Array.from({ length: WORKERS }, () => lease([queue])))
      expect(
        got.every((runs) => runs > 0),
        String(got),
      ).toBe(true)
    })

    test('waiting workers are woken until all jobs are leased', async () => {
      const queue = unique('queue')
      const pause = (paused: boolean) => services().queues.put(admin, queue, { paused })
      await pause(true)
      await submitLarge(queue, WORKERS * RUNS_OF_WORKER)
      const waiting = Array.from({ length: WORKERS }, () => lease([queue], { waitMs: 20_000 }))
      // A later poll is answered after them.
      expect(await lease([queue])).toBe(0)
      await pause(false)
      expect((await Promise.all(waiting)).every((runs) => runs > 0)).toBe(true)
    })

    test('many queues do not make an answer larger', async () => {
      const queues = [unique('queue'), unique('queue')]
      for (const queue of queues) await submitLarge(queue, 10)
      expect(await lease(queues, { max: 100 })).toBe(16)
      expect(await lease(queues, { max: 100 })).toBe(4)
    })
  },
  { world },
)
