import { expect, test } from 'vitest'
import { eachEmbedded } from '../testing/services/embedded.ts'
import { unique } from '../testing/store/store.ts'
import { defineKind } from './index.ts'

eachEmbedded(({ ichido }) => {
  test('a handler publishes the stages of its kind over two attempts', async () => {
    const backoff = { baseSeconds: 0.01, jitter: 0 }
    const scan = defineKind(unique('scan'), { domain: 'scan', stages: 'eco2', backoff })
    ichido().handle(scan, async ({ progress, job }) => {
      await progress('vision', 0, { attempt: job.attempt })
      void progress('rule', 0)
      if (job.attempt === 1) throw new Error('the first attempt fails')
      await expect(progress('reward', 10)).rejects.toThrow(RangeError)
      void progress('done', 1, 'last')
    })
    const submitted = await ichido().submit(scan, null)
    const seen: unknown[] = []
    for await (const { stage, seq, data } of submitted.watch()) if (stage !== 'run') seen.push([stage, seq, data])
    expect(seen).toEqual([
      ['vision', 10, { attempt: 1 }],
      ['rule', 20, null],
      ['done', 51, 'last'],
    ])
    expect(ichido().troubles).toEqual([])
  })
})
