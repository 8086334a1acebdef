import { v7 } from 'uuid'
import { expect, test } from 'vitest'
import { claimNames, removeNames, type UserName } from '../../../src/store/limits/user-names.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { lead } from '../../../src/testing/store/dead-letters.ts'
import { sql } from '../../../src/testing/store/store.ts'

const { a, b, meet } = twoNodes()
const DAY_MS = 86_400_000
const MAX = { queue: 2, domain: 2, label: 2 }

const queue = (userId: string, name: string): UserName => ({ userId, sort: 'queue', name })
const claim = (userId: string, ...queues: string[]) =>
  claimNames(
    queues.map((name) => [queue(userId, name)]),
    MAX,
  )
const claimed = (userId: string) =>
  sql(a(), 'SELECT name FROM ichido.user_names WHERE user_id = $1 ORDER BY name', userId)

test("if two nodes claim a user's last queue name, one of them gets it", async () => {
  const user = v7()
  expect(await a().write(claim(user, 'one'))).toEqual([null])
  expect(await meet(claim(user, 'two'), claim(user, 'three'))).toEqual([[null], [queue(user, 'three')]])
  expect(await claimed(user)).toEqual([{ name: 'one' }, { name: 'two' }])
})

test('if two nodes claim the same queue, it counts once', async () => {
  const user = v7()
  expect(await meet(claim(user, 'one'), claim(user, 'one', 'two'))).toEqual([[null], [null, null]])
  expect(await claimed(user)).toHaveLength(2)
})

test('a refused claim reserves none of its names', async () => {
  const user = v7()
  await a().write(claim(user, 'one', 'two'))
  const label = { userId: user, sort: 'label', name: 'env' } as const
  expect(await b().write(claimNames([[label, queue(user, 'three')]], MAX))).toEqual([queue(user, 'three')])
  expect(await claimed(user)).toHaveLength(2)
})

test('a name unused for a day is removed, but not by a former leader', async () => {
  const user = v7()
  await a().write(claim(user, 'one', 'two'))
  const term = await lead(a())
  await sql(a(), `UPDATE ichido.user_names SET seen_at = seen_at - ${DAY_MS + 1} WHERE user_id = $1`, user)
  expect(await a().write(claim(user, 'one'))).toEqual([null])
  expect(await a().write(removeNames({ ...term, epoch: term.epoch - 1 }, DAY_MS, 1_000))).toBe(0)
  expect(await a().write(removeNames(term, DAY_MS, 1_000))).toBe(1)
  expect(await claimed(user)).toEqual([{ name: 'one' }])
  expect(await a().write(claim(user, 'three'))).toEqual([null])
})
