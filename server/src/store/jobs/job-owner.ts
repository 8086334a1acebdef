import { type Command, command } from '../port.ts'
import { one, statement, type Work } from '../statement.ts'

export const readOwnerOfJob = statement('read_owner_of_job', {
  params: { job_id: 'text' },
  row: { user_id: 'text' },
  sql: 'SELECT user_id FROM ichido.jobs WHERE id = $job_id',
})

/** The user of a job; null when there is no such job. */
export function findOwner(jobId: string): Command<string | null> {
  return command('find_owner', function* work(): Work<string | null> {
    return (yield* one(readOwnerOfJob, { job_id: jobId }))?.user_id ?? null
  })
}
