import { expect, test } from 'vitest'
import { promoteDue } from '../../../src/store/leasing/promote-runs.ts'
import { renewTerm, tryToLead } from '../../../src/store/system/leadership.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two nodes promote at the same time, or one node leads twice: neither waits for the other or acts for it. */

const nodes = twoNodes()

test('runs that another node is promoting are skipped and delay no other runs', async () => {
  const scene = new Scene(nodes.a())
  await scene.submitAll([scene.item({ delayMs: 60_000 }), scene.item({ delayMs: 61_000 })])
  await sql(nodes.a(), 'UPDATE ichido.runs SET run_at = run_at - 100000 WHERE user_id = $1', scene.userId)
  const [first, second] = await nodes.pass(promoteDue(1, []), () => nodes.b().write(promoteDue(10, [])))
  expect([first.promoted.length, second.promoted.length]).toEqual([1, 1])
  expect(await scene.lease({ max: 10 })).toHaveLength(2)
})

test('an older term of the same holder cannot be renewed', async () => {
  const node = nodes.a()
  const lead = async () => ({ holder: 'node', epoch: (await node.write(tryToLead('node', 60_000))).epoch })
  const [old, current] = [await lead(), await lead()]
  expect(current.epoch).toBe(old.epoch + 1)
  const row = () => sql(node, 'SELECT holder, epoch, expires_at FROM ichido.leadership')
  const before = await row()
  expect(await node.write(renewTerm(old, 120_000))).toMatchObject({ held: false, epoch: current.epoch })
  expect(await row()).toEqual(before)
  expect(await node.write(renewTerm(current, 120_000))).toMatchObject({ held: true })
  expect(await row()).not.toEqual(before)
})
