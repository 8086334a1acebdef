import { expect, test } from 'vitest'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine } from '../../../src/testing/store/store.ts'

/** Hazard 16: a report is compared with the epoch in which its run started, never with the current epoch. */

eachEngine(({ store }) => {
  test.each(['finish', 'fail'] as const)('after three takeovers during one run its %s is accepted', async (verb) => {
    const scene = new Scene(store())
    const { epoch } = await seize(store())
    const lease = await scene.running()
    expect(lease.leaderEpoch).toBe(epoch)
    for (let takeover = 0; takeover < 3; takeover++) {
      const term = await seize(store())
      expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
      expect(await scene[verb](lease, { leaderEpoch: term.epoch })).toEqual({
        kind: 'refused',
        reason: 'EPOCH_MISMATCH',
      })
    }
    const guards = { leaderEpoch: epoch, version: lease.version }
    expect(await scene[verb](lease, guards)).toMatchObject({ kind: 'recorded' })
    await seize(store())
    expect(await scene[verb](lease, guards)).toMatchObject({ kind: 'repeated' })
  })

  test('a run that starts after a takeover has the new epoch', async () => {
    const scene = new Scene(store())
    await scene.submitted()
    const lease = await scene.leased()
    const { epoch } = await seize(store())
    expect(await scene.start(lease)).toMatchObject({ kind: 'started', leaderEpoch: epoch })
    expect(await scene.finish(lease, { leaderEpoch: epoch })).toMatchObject({ kind: 'recorded', state: 'SUCCEEDED' })
  })
})
