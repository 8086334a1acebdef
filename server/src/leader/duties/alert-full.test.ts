import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { alert as shape } from '../../contract/system.ts'
import { StoreFull } from '../../core/node/store-errors.ts'
import { createAlertService, FullDisks } from '../../services/system/alerts.ts'
import type { Store } from '../../store/port.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { createRecordFull } from './alert.ts'

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let isFull: boolean
  let disks: FullDisks
  /**
   * The clock of the nodes. PostgreSQL's own clock cannot be moved, and two times within a millisecond are not
   * distinguished.
   */
  let nowMs: number
  const world = () => ({ uuid: scene.world.uuid, now: () => nowMs })
  /** The store, which takes no writes while it is full. */
  let store: Store
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(async () => {
    await sql(scene.store, 'DELETE FROM ichido.alerts')
    isFull = false
    nowMs = scene.world.now()
    const requireRoom = async () => {
      if (isFull) throw new StoreFull('store', 'of the test')
    }
    const write: Store['write'] = async (command) => {
      await requireRoom()
      return scene.store.write(command)
    }
    disks = new FullDisks({ world: world(), store: { ...scene.store, write, requireRoom } })
    store = disks.watchStore()
  })
  afterAll(() => scene.close())

  const alerts = (all: boolean) =>
    createAlertService({ ...scene.services.deps, store, fullDisks: disks }).list({ all, rule: null }, 50, null)

  async function fillUp(times: number): Promise<void> {
    isFull = true
    const write = () => sql(store, 'DELETE FROM ichido.alerts').catch(() => {})
    await Promise.all(Array.from({ length: times }, write))
  }

  test('an alert of a full disk is in memory first, and stored once later', async () => {
    const changes: (number | null)[] = []
    disks.onChange(({ endedAtMs }) => changes.push(endedAtMs))
    const record = createRecordFull({ store, fullDisks: disks }, await seize(scene.store))
    await fillUp(3)
    await disks.look()
    await record()
    const { data } = await alerts(false)
    expect(data).toMatchObject([{ rule: 'store_full', subject: 'store', closed_at: null }])
    for (const one of data) expect(shape.parse(one)).toEqual(one)

    isFull = false
    await disks.look()
    expect(changes).toEqual([null, expect.any(Number)])
    expect((await alerts(false)).data).toEqual([])
    await Promise.all([record(), record()])
    await record()
    expect((await alerts(true)).data).toEqual([{ ...data[0], closed_at: expect.any(String) }])
    expect(disks.ended).toEqual([])
  })

  test('a former leader stores no alert, and the next leader stores it', async () => {
    const past = await seize(scene.store)
    await fillUp(1)
    isFull = false
    await disks.look()
    const term = await seize(scene.store)
    await createRecordFull({ store, fullDisks: disks }, past)()
    expect((await alerts(true)).data).toEqual([])
    await createRecordFull({ store, fullDisks: disks }, term)()
    expect((await alerts(true)).data).toHaveLength(1)
  })

  test('a full disk that two nodes saw is one alert, whichever node leads', async () => {
    const other = new FullDisks({
      world: world(),
      store: { ...scene.store, write: (command) => store.write(command) },
    })
    await fillUp(1)
    await sql(other.watchStore(), 'DELETE FROM ichido.alerts').catch(() => {})
    nowMs += 1_000
    isFull = false
    for (const seen of [disks, other]) {
      await seen.look()
      await createRecordFull({ store, fullDisks: seen }, await seize(scene.store))()
      expect(seen.ended).toEqual([])
    }
    expect((await alerts(true)).data).toHaveLength(1)
  })

  test('two full times of one disk are two alerts', async () => {
    const record = createRecordFull({ store, fullDisks: disks }, await seize(scene.store))
    for (let time = 0; time < 2; time++) {
      await fillUp(1)
      isFull = false
      await disks.look()
    }
    await record()
    expect((await alerts(true)).data.map(({ closed_at }) => typeof closed_at)).toEqual(['string', 'string'])
  })
})
