import { compare } from '../contest/compare.ts'
import { EVERYONE, inTurns, labelsOf, withField } from '../contest/field.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const BATCH = 1_000
const CALLERS = 2
const TARGETS = { http: { best: { least: 0.95 } }, ours: { best: { least: 1.1 } } }

/** 1,000 jobs a call and two calls at a time, first without keys, then with. */
export function batch(stage: Stage): Promise<Comparison[]> {
  const { size, say } = stage
  return withField(stage, 'batch', EVERYONE, async (field) => {
    const rows: Comparison[] = []
    for (const keyed of [false, true]) {
      say(`batches of ${BATCH}, ${keyed ? 'with' : 'without'} keys: ${labelsOf(EVERYONE)}`)
      const round = { callers: CALLERS, durationMs: size.roundMs, batch: BATCH, keyed }
      const found = await inTurns(size, field, (entrant) => entrant.run(round))
      const what = `batch of ${BATCH.toLocaleString('en-US')}, ${keyed ? 'with keys' : 'no keys'}`
      rows.push(...compare({ what, unit: '/s', found, targets: TARGETS }))
    }
    return rows
  })
}
