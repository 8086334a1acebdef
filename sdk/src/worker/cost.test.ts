import { beforeEach, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../scripts/testing/fake-world.ts'
import { defineKind } from '../client/kind.ts'
import { LEASE, Plane } from './testing/plane.ts'
import { type Handler, HandlerLoop } from './worker.ts'

let plane: Plane
beforeEach(() => {
  plane = new Plane()
})

function loop(handler: Handler<unknown, unknown>): HandlerLoop<unknown, unknown> {
  return new HandlerLoop(defineKind('work'), handler, {}, { transport: plane, world: new FakeWorld(), onTrouble() {} })
}

test('the last cost of a handler is reported with its result', async () => {
  plane.work.push(LEASE, LEASE)
  const amounts = [[50, 0.25], []]
  const running = loop(({ cost }) => {
    for (const amount of amounts.shift() ?? []) cost(amount)
    return 'done'
  })
  await settled()
  expect(plane.reports).toEqual([{ result: 'done', cost: 0.25 }, { result: 'done' }])
  await running.close(0)
})

test('the lowest and the highest cost are accepted', async () => {
  plane.work.push(LEASE, LEASE)
  const amounts = [0, 1_000_000_000]
  const running = loop(({ cost }) => cost(amounts.shift() ?? Number.NaN))
  await settled()
  expect(plane.reports).toEqual([
    { result: null, cost: 0 },
    { result: null, cost: 1_000_000_000 },
  ])
  await running.close(0)
})

test.each([-0.01, Number.NaN, Number.POSITIVE_INFINITY, 1_000_000_000.5, '3'])(
  'a cost of %s is refused, and the cost before it stays',
  async (amount) => {
    plane.work.push(LEASE)
    const running = loop(({ cost }) => {
      cost(3)
      expect(() => cost(amount as number)).toThrow(new RangeError('cost must be a number from 0 to 1000000000'))
      return 'done'
    })
    await settled()
    expect(plane.reports).toEqual([{ result: 'done', cost: 3 }])
    await running.close(0)
  },
)
