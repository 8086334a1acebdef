import type {
  EventShape,
  JobDetail,
  JobShape,
  JobStateShape,
  Page,
  ResultShape,
  SubmitRequest,
  SubmitResponse,
} from '../protocol/index.ts'

/** How a client reaches the control plane: over HTTP, or by calls inside the process. */
export interface Transport {
  submit(request: SubmitRequest, options: SubmitCall): Promise<{ response: SubmitResponse; replayed: boolean }>
  get(jobId: string): Promise<JobDetail>
  list(filter: JobListFilter): Promise<Page<JobShape>>
  cancel(jobId: string): Promise<JobDetail>
  /** Waits for the end of the job, but no longer than this; then it is refused with RESULT_NOT_READY. */
  result(jobId: string, waitMs: number, signal?: AbortSignal): Promise<ResultShape>
  /** Every event once, in the order of their cursors, until the job has ended. */
  watch(jobId: string, options: WatchOptions): AsyncGenerator<JobEvent>
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
export type JobEvent = EventShape

export interface WatchOptions {
  /** The cursor of the last event that was seen. */
  after?: number | undefined
  /** Instead of it: the seq of the last event that was seen. */
  lastSeq?: number | undefined
  signal?: AbortSignal | undefined
  /** What came next is not kept any more: this is how the job stands, and it goes on from here. */
  onReset?: ((state: JobStateShape) => void) | undefined
  /** It tries again after this error, or has got through again (null). What it throws ends the watch. */
  onTrouble?: ((error: unknown) => void) | undefined
}
