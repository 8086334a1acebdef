import { v7 } from 'uuid'
import { expect, test } from 'vitest'
import { withinOperations } from '../../../src/store/limits/operations.ts'
import { abortOperation } from '../../../src/store/operations/operations.ts'
import type { Command } from '../../../src/store/port.ts'
import { beginBackfill } from '../../../src/store/schedules/backfills.ts'
import { BY, EVERY_SECOND } from '../../../src/testing/nodes/ticker.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { begin } from '../../../src/testing/store/dead-letters.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { unique } from '../../../src/testing/store/store.ts'

const { a, meet } = twoNodes()

/** The user may have two operations. */
function redrive(actor: string) {
  const operationId = v7()
  return withinOperations({ id: operationId, actor, max: 2 }, begin(new Scene(a()), { operationId, actor }))
}

function backfill(actor: string) {
  const backfillId = v7()
  const range = { fromMs: 0, toMs: 1_000, schedule: EVERY_SECOND, matched: 1 }
  const begun = beginBackfill(
    { backfillId, definition: { id: v7(), name: unique('definition') }, ...range },
    { ...BY(), actor },
  )
  return withinOperations({ id: backfillId, actor, max: 2 }, begun)
}

test.each(['a redrive', 'a backfill'])(
  "of two operations that begin for a user's last slot, one succeeds: %s",
  async (which) => {
    const user = unique('user')
    const other: (actor: string) => Command<object | null> = which === 'a redrive' ? redrive : backfill
    const first = await a().write(redrive(user))
    expect(first).not.toBeNull()
    const [one, two] = await meet(redrive(user), other(user))
    expect([one !== null, two]).toEqual([true, null])
    // Other users are not limited, and an operation that ended frees its slot.
    expect(await a().write(redrive(unique('user')))).not.toBeNull()
    await a().write(abortOperation(first?.operationId ?? '', user, v7()))
    expect(await a().write(other(user))).not.toBeNull()
  },
)

test('an operation whose COMMIT answer was lost does not count against itself', async () => {
  const user = unique('user')
  await a().write(redrive(user))
  const last = redrive(user)
  const begun = await a().write(last)
  expect(await a().write({ ...last, work: () => last.work(true) })).toEqual(begun)
  expect(await a().write(redrive(user))).toBeNull()
})
