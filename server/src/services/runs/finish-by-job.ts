import { IchidoError } from '@ichido/sdk/protocol'
import { TIMEOUT } from '../../core/run/run-state.ts'
import { findLeaseOfJob, type LeaseOfJob } from '../../store/leasing/leased.ts'
import type { FinishOutcome, Report } from '../../store/runs/finish-runs.ts'
import { findLateness, type Lateness } from '../../store/runs/late-reports.ts'
import { jobIdOf } from '../../store/runs/run-facts.ts'
import { iso, notFound, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import type { RunService } from './runs.ts'

/** The advice for calculations that take longer than their lease. It continues a sentence. */
export const LONGER_LEASE = 'raise lease_ttl_seconds of its queue or definition'

/**
 * A report of a worker that sends no heartbeats and names the job instead of the lease (S1). Without a lease, it means
 * the worker's last lease on that job, so that a repeat is known as the same report. A report after the end of its
 * lease counts if no other worker got the job since.
 */
export async function finishByJob(
  deps: Deps,
  runs: RunService,
  held: LeaseOfJob,
  report: Report,
): Promise<Exclude<FinishOutcome, { kind: 'refused' }>> {
  const { workerId, jobId } = held
  requireId('job', jobId)
  const found = await deps.store.read(findLeaseOfJob(held))
  if (found === null) throw notFound('job', jobId)
  const { leaseId } = found
  if (leaseId === null) {
    deps.evidence.refused(jobId, 'LEASE_LOST')
    throw await refusal(
      deps,
      held,
      new IchidoError('LEASE_LOST', `The caller does not hold this lease on job ${jobId}`),
    )
  }
  const outcome = await runs.finish(workerId, leaseId, report, { late: true })
  if (outcome.kind === 'refused') throw await refusal(deps, { ...held, leaseId }, new IchidoError(outcome.reason))
  return outcome
}

/** The same error with a message that says what happened to the job, if the report came too late. */
async function refusal(deps: Deps, { jobId, workerId, leaseId }: LeaseOfJob, error: IchidoError): Promise<IchidoError> {
  if (error.code !== 'LEASE_LOST' && error.code !== 'ALREADY_ENDED') return error
  if (leaseId !== null && jobIdOf(leaseId) === null) return error
  const late = await deps.store.read(findLateness(jobId, workerId, leaseId))
  if (late?.state !== 'TIMED_OUT' || late.leaseEndedAtMs === null) return error
  const endedAt = iso(late.leaseEndedAtMs)
  const [what, remedy] =
    late.errorCode === TIMEOUT.code
      ? ['The run took longer than its timeout_seconds', 'raise timeout_seconds of its definition']
      : [`The lease ended at ${endedAt}`, LONGER_LEASE]
  const message = `${what}, and since then ${whatHappened(late, workerId)}. If calculations take longer, ${remedy}.`
  return new IchidoError(error.code, message, { lease_ended_at: endedAt, state: late.since?.state ?? late.state })
}

function whatHappened({ since }: Lateness, workerId: string): string {
  if (since === null) return 'the job has become a dead letter, because its retries are used up'
  switch (since.state) {
    case 'PENDING':
      return 'the job waits for its next attempt'
    case 'CANCELED':
      return 'the job was canceled'
    case 'ASSIGNED':
    case 'RUNNING':
    case 'ORPHANED': {
      const whom = since.workerId === workerId ? 'this worker again' : 'another worker'
      return `the job was handed to ${whom}, as attempt ${since.attempt}`
    }
    default:
      return `the job has ended ${since.state}, with attempt ${since.attempt}`
  }
}
