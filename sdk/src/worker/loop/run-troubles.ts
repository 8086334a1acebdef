import type { LeaseShape } from '../../protocol/index.ts'

/** What is said of runs that do not end as they should. */

export function overrun(lease: LeaseShape): Error {
  return new Error(`The handler of ${lease.kind} ignored its signal and still runs: ${which(lease)}`)
}

export function leftBehind(lease: LeaseShape): Error {
  return new Error(`Closed, but the handler of ${lease.kind} ignored its signal and still runs: ${which(lease)}`)
}

export function unreported(lease: LeaseShape): Error {
  return new Error(`Closed before the outcome of a run of ${lease.kind} was delivered: ${which(lease)}`)
}

function which({ job_id: jobId, attempt }: LeaseShape): string {
  return `job ${jobId}, attempt ${attempt}`
}
