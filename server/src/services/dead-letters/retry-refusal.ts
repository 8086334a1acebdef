import { IchidoError } from '@ichido/sdk/protocol'
import type { EndedRefusal } from '../../store/jobs/ended-jobs.ts'
import { notFound } from '../not-found.ts'

/** What is said of a job that can be neither retried nor replaced. */
export function retryRefusal(jobId: string, refusal: EndedRefusal): IchidoError {
  switch (refusal.reason) {
    case 'NOT_FOUND':
      return notFound('job', jobId)
    case 'NOT_ENDED': {
      const { state, canceling } = refusal
      const why = canceling ? 'its cancellation is in progress' : 'only a job that has ended can be retried'
      return new IchidoError('NOT_ENDED', `Job ${jobId} is ${state}: ${why}`, { state, cancel_requested: canceling })
    }
    case 'ALREADY_ENDED': {
      const message = `Job ${jobId} has succeeded; there is nothing to retry`
      return new IchidoError('ALREADY_ENDED', message, { state: refusal.state })
    }
    case 'ALREADY_REPLACED': {
      const { byJobId } = refusal
      const message = `Job ${jobId} was replaced by job ${byJobId}; retry that job`
      return new IchidoError('ALREADY_REPLACED', message, { job_id: byJobId })
    }
  }
}
