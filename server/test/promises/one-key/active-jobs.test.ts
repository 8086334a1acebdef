import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { finishBatch } from '../../../src/store/runs/finish-runs.ts'
import { findKeys } from '../../../src/store/submission/keys.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { removeKeys } from '../../../src/testing/store/retention.ts'
import { failed, finished, KEY_TTL_MS, Scene } from '../../../src/testing/store/scene.ts'

/** Hazard 12: a key is never removed before its job has ended, however close the end is. */

const nodes = twoNodes()

/** A running job whose key has expired. */
async function overdue() {
  const scene = new Scene(nodes.a())
  const lease = await scene.running({ key: 'k' })
  await scene.age(KEY_TTL_MS + 1)
  return { scene, lease, keys: () => nodes.a().read(findKeys('k', scene.userId)) }
}

describe('retention of keys races with the end of a run', () => {
  test('a key stays until the end of the run has committed, and is then removed', async () => {
    const { scene, lease, keys } = await overdue()
    const gate = await nodes.gate()
    const finishing = nodes.a().write(gate.hold(finishBatch([scene.endItem(lease, finished())])))
    await gate.reached()
    expect(await nodes.b().write(removeKeys(1_000))).toBe(0)
    expect(await keys()).toMatchObject([{ jobId: lease.jobId, active: true }])
    await gate.open()
    await finishing
    expect(await nodes.b().write(removeKeys(1_000))).toBe(1)
  })

  test('while a failure creates the next run, the key is never free', async () => {
    const { scene, lease, keys } = await overdue()
    const gate = await nodes.gate()
    // The gate holds the command after the run has ended and before the next run exists.
    const failing = nodes.a().write(gate.hold(finishBatch([scene.endItem(lease, failed())]), 'finish_runs'))
    await gate.reached()
    expect(await nodes.b().write(removeKeys(1_000))).toBe(0)
    await gate.open()
    await failing
    expect(await nodes.b().write(removeKeys(1_000))).toBe(0)
    expect(await keys()).toHaveLength(1)
    expect(await scene.submit({ key: 'k' })).toMatchObject({ kind: 'replayed', jobId: lease.jobId })
  })

  test('random interleaving: the key of a job that continues is never removed', async () => {
    for (let round = 0; round < size(25, 500); round++) {
      const { scene, lease, keys } = await overdue()
      const goesOn = round % 2 === 0
      let racing = true
      const retention = (async () => {
        while (racing) await nodes.b().write(removeKeys(1_000))
      })()
      await (goesOn ? scene.fail(lease) : scene.finish(lease))
      racing = false
      await retention
      await nodes.b().write(removeKeys(1_000))
      expect(await keys()).toHaveLength(goesOn ? 1 : 0)
    }
  })
})

test('a dead letter has ended, so its expired key can create another job', async () => {
  const scene = new Scene(nodes.a())
  const lease = await scene.running({ key: 'k', policy: { max_attempts: 1 } })
  expect(await scene.fail(lease)).toMatchObject({ dead: true })
  await scene.age(KEY_TTL_MS + 1)
  const second = await scene.submit({ key: 'k' })
  expect(second).toMatchObject({ kind: 'created' })
  expect(await nodes.a().write(removeKeys(1_000)), 'the key is the new job’s now').toBe(0)
})
