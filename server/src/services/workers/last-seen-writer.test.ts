import { describe, expect, test } from 'vitest'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { ageWorker, registered } from '../../testing/services/workers.ts'
import { sql, until } from '../../testing/store/store.ts'
import { LastSeenWriter } from './workers.ts'

describe('a call of a worker', () => {
  function collect(write: (ids: string[]) => Promise<void> = async () => {}) {
    const world = new FakeWorld()
    const written: string[][] = []
    const agos: number[][] = []
    const seen = new LastSeenWriter(world, (signs) => {
      const ids = signs.map(({ workerId }) => workerId)
      written.push(ids)
      agos.push(signs.map(({ agoMs }) => agoMs))
      return write(ids)
    })
    return { world, written, agos, seen }
  }

  test('is written together with others', async () => {
    const { world, written, agos, seen } = collect()
    for (const id of ['b', 'a', 'b']) seen.add(id)
    await world.pass(999)
    seen.add('c')
    expect(written).toEqual([])
    await world.pass(1)
    expect(written).toEqual([['a', 'b', 'c']])
    expect(agos).toEqual([[1_000, 1_000, 1]])
    await world.pass(60_000)
    expect(written).toHaveLength(1)
  })

  test('is written once in ten seconds', async () => {
    const { world, written, seen } = collect()
    for (let i = 0; i < 600; i++) {
      seen.add('a')
      await world.pass(100)
    }
    expect(written.length).toBeGreaterThanOrEqual(5)
    expect(written.length).toBeLessThanOrEqual(6)
  })

  test('is written at once after a detach, without earlier calls', async () => {
    const { world, written, seen } = collect()
    seen.add('a')
    seen.add('b')
    seen.forget('a')
    await world.pass(1_000)
    seen.add('a')
    await world.pass(1_000)
    expect(written).toEqual([['b'], ['a']])
  })

  test('is written with the next one after an outage', async () => {
    let down = true
    const { world, written, seen } = collect(async () => {
      if (down) throw new Error('The store is out of reach')
    })
    seen.add('a')
    await world.pass(1_000)
    down = false
    seen.add('a')
    await world.pass(1_000)
    expect(written).toEqual([['a'], ['a']])
  })
})

eachServices(({ services }) => {
  test('makes the worker online again', async () => {
    const { workers, deps } = services()
    const operator = callerOf('operator')
    const [silent, heard] = [await registered(services()), await registered(services())]
    for (const { worker_id } of [silent, heard]) await ageWorker(deps.store, worker_id, 3_600_000)
    workers.seen(heard.worker_id)
    workers.seen('01a1e12b-0000-7000-8000-000000000000')
    await until('the note', async () => (await workers.get(operator, heard.worker_id)).state === 'online')
    expect(await workers.get(operator, silent.worker_id)).toMatchObject({ state: 'unseen' })
    await sql(deps.store, 'UPDATE ichido.workers SET last_seen_at = NULL WHERE worker_id = $1', silent.worker_id)
    expect(await workers.get(operator, silent.worker_id)).toMatchObject({ state: 'unseen', last_seen_at: null })
  })
})
