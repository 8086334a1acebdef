import type { LeaseShape } from '../../protocol/index.ts'

/** What is said of runs that do not end as they should. */

export function overrun(lease: LeaseShape): Error {
  return new Error(`The handler of ${lease.kind} goes on although it was told to stop: ${which(lease)}`)
}

export function leftBehind(lease: LeaseShape): Error {
  return new Error(
    `Closed without the handler of ${lease.kind}, which goes on although it was told to stop: ${which(lease)}`,
  )
}

export function unreported(lease: LeaseShape): Error {
  return new Error(`Closed before anybody heard how a run of ${lease.kind} ended: ${which(lease)}`)
}

function which({ job_id: jobId, attempt }: LeaseShape): string {
  return `job ${jobId}, attempt ${attempt}`
}
