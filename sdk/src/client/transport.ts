import type { JobDetail, JobShape, Page, ResultShape, SubmitRequest, SubmitResponse } from '../protocol/index.ts'

/** How a client reaches the control plane: over HTTP, or by calls inside the process. */
export interface Transport {
  submit(request: SubmitRequest, options: SubmitCall): Promise<{ response: SubmitResponse; replayed: boolean }>
  get(jobId: string): Promise<JobDetail>
  list(filter: JobListFilter): Promise<Page<JobShape>>
  cancel(jobId: string): Promise<JobDetail>
  /** Waits for the end of the job, but no longer than this; then it is refused with RESULT_NOT_READY. */
  result(jobId: string, waitMs: number, signal?: AbortSignal): Promise<ResultShape>
  /** The events after a cursor, at once or, when there is none yet, as soon as there is one or the time is up. */
  events(jobId: string, after: number, waitMs: number, signal?: AbortSignal): Promise<EventsPage>
}

export interface SubmitCall {
  key?: string
  /** The caller's own transaction; only in process, on PostgreSQL. */
  tx?: unknown
}

export interface JobListFilter {
  state?: string
  queue?: string
  kind?: string
  label?: string
  key?: string
  limit?: number
  cursor?: string
}

/** A fact of a job's progress. */
export interface JobEvent {
  cursor: number
  stage: string
  seq: number
  data: unknown
  timestamp: string
}

export interface EventsPage {
  events: JobEvent[]
  /** No further event can come: the job has ended and these are the last. */
  ended: boolean
}
