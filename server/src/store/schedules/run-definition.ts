import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import type { Work } from '../statement.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome } from '../submission/submission.ts'
import { submitWork } from '../submission/submit-jobs.ts'

/** A submission, and who asked for it. A key that is replayed makes no job, and no entry. */
export function runDefinition(name: string, item: SubmitItem, render: RenderAccepted, by: By): Command<SubmitOutcome> {
  return command('run_definition', function* work(again): Work<SubmitOutcome> {
    const [outcome] = yield* submitWork([item], render, again)
    if (outcome === undefined) throw new Error('A submission has an outcome')
    if (outcome.kind === 'created' && !(yield* isRecorded(again, by))) {
      yield* record(by, 'definition.run', name, null, { job_id: outcome.jobId })
    }
    return outcome
  })
}
