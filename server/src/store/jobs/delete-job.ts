import type { RunState } from '../../core/run/run-state.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { readOwnerOfJob } from '../artifacts/artifacts.sql.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { one, query, type Work } from '../statement.ts'
import { examineDeleted, lockEndedJob, readWhyKept } from '../system/retention.sql.ts'
import { removeLocked } from '../system/retention.ts'

export type DeleteOutcome =
  | { kind: 'deleted' }
  /** It has more events or logs than go in one transaction: run the command again. */
  | { kind: 'unfinished' }
  | { kind: 'refused'; refusal: DeleteRefusal }

export type DeleteRefusal =
  | { reason: 'NOT_FOUND' }
  | { reason: 'NOT_ENDED'; state: RunState }
  /** The job that this one replaces is still there, and would be free to be replaced a second time. */
  | { reason: 'REPLACES'; jobId: string }
  | { reason: 'IN_REDRIVE' }

/**
 * Removes a job that has ended, with all that belongs to it. Under the locks that a retry takes, it is either retried or
 * deleted. A retry between two transactions of a long deletion keeps the job, without the events and logs that have gone.
 */
export function deleteJob(jobId: string, by: By): Command<DeleteOutcome> {
  return command('delete_job', function* work(again): Work<DeleteOutcome> {
    const owner = yield* one(readOwnerOfJob, { job_id: jobId })
    if (owner !== undefined) yield* lockUsersOf([owner.user_id])
    const ended = yield* one(lockEndedJob, { job_id: jobId })
    if (yield* isRecorded(again, by)) return { kind: 'deleted' }
    if (ended === undefined) return { kind: 'refused', refusal: yield* whyKept(jobId) }
    const locked = JSON.stringify([jobId])
    const { rows, unfinished } = yield* removeLocked(locked, () => query(examineDeleted, { job_ids: locked }))
    if (unfinished) return { kind: 'unfinished' }
    if (!rows.get('jobs')) return { kind: 'refused', refusal: yield* whyKept(jobId) }
    yield* record(by, 'job.delete', jobId, { state: ended.state }, null)
    return { kind: 'deleted' }
  })
}

function* whyKept(jobId: string): Work<DeleteRefusal> {
  const row = yield* one(readWhyKept, { job_id: jobId })
  if (row === undefined) return { reason: 'NOT_FOUND' }
  if (!row.ended) return { reason: 'NOT_ENDED', state: row.state }
  return row.predecessor === null ? { reason: 'IN_REDRIVE' } : { reason: 'REPLACES', jobId: row.predecessor }
}
