import { describe, expect, test } from 'vitest'
import { startBatch } from '../../../src/store/runs/start-runs.ts'
import { testServices } from '../../../src/testing/services/services.ts'
import { leasesFor, Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine } from '../../../src/testing/store/store.ts'

/** Hazard 17: a lost answer wastes no attempt, and a heartbeat does not break a start. */
eachEngine(({ engine, store }) => {
  test('repeating lease, start and finish after a lost answer changes nothing', async () => {
    const scene = new Scene(store())
    const jobId = await scene.submitted()
    const poll = leasesFor([scene.leaseItem()])
    const [first] = await store().write(poll)
    const [again] = await store().write(poll)
    expect(again).toEqual(first)
    const [lease] = first ?? []
    if (lease === undefined) throw new Error('There was a run to lease')

    expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
    const start = startBatch([scene.startItem(lease)])
    const [started] = await store().write(start)
    expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
    const [startedAgain] = await store().write(start)
    expect(started).toMatchObject({ kind: 'started' })
    expect({ ...started, ...startedAgain }).toEqual({ ...started, kind: 'repeated' })
    const [leasedAgain] = await store().write(poll)
    expect(leasedAgain, 'the poll still answers, with the run as it is now').toMatchObject([
      { leaseId: lease.leaseId, attempt: 1 },
    ])

    expect(await scene.heartbeat(lease)).toMatchObject({ kind: 'extended' })
    const version = started?.kind === 'started' ? started.version : null
    expect(await scene.finish(lease, { version })).toMatchObject({ kind: 'recorded' })
    expect(await scene.finish(lease, { version })).toMatchObject({ kind: 'repeated' })
    const runs = await scene.runs(jobId)
    expect(runs).toMatchObject([{ attempt: 1, retry_count: 0, version: 4, state: 'SUCCEEDED' }])
    expect(await scene.events(jobId)).toHaveLength(4)
  })

  describe('through the service', () => {
    test('a repeated report may have other meta, but not another result', async () => {
      const { services, close } = await testServices(engine)
      const caller = { userId: 'ann', role: 'submitter' } as const
      await services.submission.submit(caller, { kind: 'work' }, { key: null })
      const request = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0, pollId: 'p' }
      const [lease] = await services.runs.lease('w', request)
      expect(await services.runs.lease('w', request)).toEqual([lease])
      if (lease === undefined) throw new Error('There was a run to lease')
      await services.runs.start('w', lease.lease_id, 's', lease.version)
      const report = (result: string, meta: string) =>
        services.runs.finish('w', lease.lease_id, {
          verb: 'finish',
          result,
          summaryText: 'done',
          freqsCsv: null,
          meta,
          costMicros: null,
        })
      expect(await report('{"a":1,"b":2}', '{"at":1}')).toMatchObject({ kind: 'recorded' })
      expect(await report('{"b":2.0,"a":1}', '{"at":2}')).toMatchObject({ kind: 'repeated' })
      expect(await report('{"a":2}', '{"at":1}')).toEqual({ kind: 'refused', reason: 'OUTCOME_ALREADY_RECORDED' })
      await close()
    })
  })
})
