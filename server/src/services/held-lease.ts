import { IchidoError } from '@ichido/sdk/protocol'
import { leasesOnJob } from '../store/commands/job-leases.ts'
import type { Deps } from './deps.ts'
import { notFound, requireId } from './not-found.ts'

export interface JobHeld {
  workerId: string
  jobId: string
  kind: string
  /** As the worker says; null when it does not. */
  leaseId: string | null
}

/**
 * The lease by which a worker reports on a job, for workers that name the job instead (S1). One that says no lease means
 * its own last one on that job, so that a report that is sent again is known as the same. Whether the lease is still
 * held is decided where the report is written.
 */
export async function heldLease(
  { store, evidence }: Deps,
  { workerId, jobId, kind, leaseId }: JobHeld,
): Promise<string> {
  requireId('job', jobId)
  const leases = await store.read(leasesOnJob(jobId, kind, workerId))
  if (leases === null) throw notFound('job', jobId)
  const held = leaseId === null ? leases[0] : leases.find((lease) => lease === leaseId)
  if (held !== undefined) return held
  evidence.refused(jobId, 'LEASE_LOST')
  throw new IchidoError('LEASE_LOST', `The caller does not hold this lease on job ${jobId}`)
}
