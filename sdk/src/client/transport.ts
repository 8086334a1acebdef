import type {
  ArtifactShape,
  EventShape,
  JobDetail,
  JobShape,
  JobState,
  JobStateShape,
  NewReservationShape,
  Page,
  RecordedTriggerShape,
  ReservationShape,
  ResultShape,
  SubmitRequest,
  SubmitResponse,
  TriggerRequest,
} from '../protocol/index.ts'

/** How a client reaches the control plane: over HTTP, or by calls inside the process. */
export interface Transport {
  submit(request: SubmitRequest, options: SubmitCall): Promise<Accepted>
  /** Each has its own outcome, in its place, and its own key in the request. */
  submitMany(requests: readonly SubmitRequest[], signal?: AbortSignal): Promise<PromiseSettledResult<Accepted>[]>
  get(jobId: string, signal?: AbortSignal): Promise<JobDetail>
  list(filter: JobListFilter, signal?: AbortSignal): Promise<Page<JobShape>>
  cancel(jobId: string, signal?: AbortSignal): Promise<JobDetail>
  retry(jobId: string, options: RetryCall): Promise<Retried>
  /** Waits for the end of the job, but no longer than this; then it is refused with RESULT_NOT_READY. */
  result(jobId: string, waitMs: number, signal?: AbortSignal): Promise<ResultShape>
  /** Every event once, in the order of their cursors, until the job has ended. */
  watch(jobId: string, options: WatchOptions): AsyncGenerator<JobEvent>
  trigger(request: Omit<TriggerRequest, 'dedupe_key'>, options: TriggerCall): Promise<RecordedTriggerShape>
  reserve(ttlSeconds?: number, signal?: AbortSignal): Promise<NewReservationShape>
  consume(reservationId: string, jobId: string, signal?: AbortSignal): Promise<ReservationShape>
  release(reservationId: string, signal?: AbortSignal): Promise<ReservationShape>
  reservations(filter: ReservationListFilter, signal?: AbortSignal): Promise<Page<ReservationShape>>
  upload(bytes: Blob, options: UploadOptions): Promise<ArtifactShape>
  /** What a job waits for, was given and has made. */
  artifacts(jobId: string, signal?: AbortSignal): Promise<ArtifactShape[]>
  download(artifactId: string, signal?: AbortSignal): Promise<ReadableStream<Uint8Array>>
}

export interface Accepted {
  response: SubmitResponse
  /** The key had been used before, also by a try of this very call whose answer got lost. */
  replayed: boolean
}

export interface SubmitCall {
  key?: string | undefined
  /** The caller's own transaction; only in process, on PostgreSQL. */
  tx?: unknown
  /** Whose job it is; only in process. */
  user?: string | undefined
  signal?: AbortSignal | undefined
}

export interface TriggerCall {
  /** Left out, a key is made that holds over the tries of this call. */
  dedupeKey?: string | undefined
  signal?: AbortSignal | undefined
}

export interface RetryCall {
  /** With it a new job is submitted in the place of the old one; `null` is a payload, too. */
  payload?: unknown
  /** Of that new job's submission. */
  key?: string | undefined
  signal?: AbortSignal | undefined
}

export interface Retried {
  job: JobDetail
  replayed: boolean
}

export interface JobListFilter {
  /** One state, or several separated by commas. */
  state?: JobState | `${JobState},${string}`
  queue?: string
  kind?: string
  label?: string
  key?: string
  limit?: number
  cursor?: string
}

export interface ReservationListFilter {
  user_id?: string
  active?: boolean
  limit?: number
  cursor?: string
}

export interface UploadOptions {
  /** A plain file name. */
  name: string
  /** The job that waits for it; without one it is kept for jobs to come. */
  jobId?: string | undefined
  /** Checked by the server; with it an upload that another call had begun goes on where it broke off. */
  sha256?: string | undefined
  /** Told as bytes have arrived and are kept; goes back when the server has lost some. */
  onProgress?: ((progress: UploadProgress) => void) | undefined
  signal?: AbortSignal | undefined
}

export interface UploadProgress {
  sentBytes: number
  totalBytes: number
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
