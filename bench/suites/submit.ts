import { compare } from '../contest/compare.ts'
import { EVERYONE, inTurns, labelsOf, submissions, withField } from '../contest/field.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const TARGETS = {
  ours: { bull: { least: 1.2 }, boss: { least: 9 } },
  http: { boss: { least: 4.5 } },
}
const TARGET_CALLERS = 64

/** Submits with a key, one job a call, by 1 to 256 callers. */
export function submit(stage: Stage): Promise<Comparison[]> {
  const { size, say } = stage
  return withField(stage, 'submit', EVERYONE, async (field) => {
    const rows: Comparison[] = []
    for (const callers of size.callers) {
      say(`submit with a key, ${callers} at a time: ${labelsOf(EVERYONE)}`)
      const found = await inTurns(size, field, (entrant, name) => entrant.run(submissions(name, callers, size.roundMs)))
      const what = `submit with key, ${callers} ${callers === 1 ? 'caller' : 'callers'}`
      rows.push(...compare({ what, unit: '/s', found, targets: callers === TARGET_CALLERS ? TARGETS : {} }))
    }
    return rows
  })
}
