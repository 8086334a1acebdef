import type {
  ArtifactShape,
  EventShape,
  JobDetail,
  JobListFilter,
  JobShape,
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

/** The connection of a client to the control plane: over HTTP, or by calls inside the process. */
export interface Transport {
  submit(request: SubmitRequest, options: SubmitCall): Promise<Accepted>
  /** Each job has its own key in the request, and its own outcome at the same index. */
  submitMany(requests: readonly SubmitRequest[], signal?: AbortSignal): Promise<PromiseSettledResult<Accepted>[]>
  get(jobId: string, signal?: AbortSignal): Promise<JobDetail>
  list(filter: JobListFilter, signal?: AbortSignal): Promise<Page<JobShape>>
  cancel(jobId: string, signal?: AbortSignal): Promise<JobDetail>
  retry(jobId: string, options: RetryCall): Promise<Retried>
  /** Waits for the end of the job for up to this long, and then rejects with RESULT_NOT_READY. */
  result(jobId: string, waitMs: number, signal?: AbortSignal): Promise<ResultShape>
  /** Yields every event once, in the order of their cursors, until the job has ended. */
  watch(jobId: string, options: WatchOptions): AsyncGenerator<JobEvent>
  trigger(request: Omit<TriggerRequest, 'dedupe_key'>, options: TriggerCall): Promise<RecordedTriggerShape>
  reserve(ttlSeconds?: number, signal?: AbortSignal): Promise<NewReservationShape>
  consume(reservationId: string, jobId: string, signal?: AbortSignal): Promise<ReservationShape>
  release(reservationId: string, signal?: AbortSignal): Promise<ReservationShape>
  reservations(filter: ReservationListFilter, signal?: AbortSignal): Promise<Page<ReservationShape>>
  upload(bytes: Blob, options: UploadOptions): Promise<ArtifactShape>
  /** Lists the files that a job waits for, was given and has made. */
  artifacts(jobId: string, signal?: AbortSignal): Promise<ArtifactShape[]>
  download(artifactId: string, signal?: AbortSignal): Promise<ReadableStream<Uint8Array>>
}

/** An accepted submission. */
export interface Accepted {
  /** The server's answer. */
  response: SubmitResponse
  /** True if the key had already made this job, also by a try of this call whose answer got lost. */
  replayed: boolean
}

/** The options of a submission that are not part of its request. */
export interface SubmitCall {
  key?: string | undefined
  /** The caller's own transaction; in process only, on PostgreSQL. */
  tx?: unknown
  /** The owner of the job; in process only. */
  user?: string | undefined
  signal?: AbortSignal | undefined
}

/** The options of a trigger that are not part of its request. */
export interface TriggerCall {
  /** Default: a generated key for the retries of this call. */
  dedupeKey?: string | undefined
  signal?: AbortSignal | undefined
}

/** The options of a retry. */
export interface RetryCall {
  /** With it, a new job is submitted in place of the old one; `null` is a payload, too. */
  payload?: unknown
  /** The key of the new job's submission. */
  key?: string | undefined
  signal?: AbortSignal | undefined
}

/** The job that continues after a retry. */
export interface Retried {
  job: JobDetail
  replayed: boolean
}

/** The filter of `client.reservations.list`. */
export interface ReservationListFilter {
  /** Only reservations of this user. */
  user_id?: string
  /** True: only reservations that hold a slot now. */
  active?: boolean
  /** The size of the page; default 50. */
  limit?: number
  /** The `next_cursor` of the page before. */
  cursor?: string
}

/** The options of `client.artifacts.upload`. */
export interface UploadOptions {
  /** A plain file name. */
  name: string
  /** The job that waits for the file; without it, the file is kept for future jobs. */
  jobId?: string | undefined
  /** Checked by the server. With it, the upload continues one that another call had begun. */
  sha256?: string | undefined
  /** Called as bytes are stored; the count goes back if the server has lost some. */
  onProgress?: ((progress: UploadProgress) => void) | undefined
  /** Aborts the upload. */
  signal?: AbortSignal | undefined
}

/** The progress of an upload. */
export interface UploadProgress {
  /** How many bytes the server has stored. */
  sentBytes: number
  /** The size of the file. */
  totalBytes: number
}

/** A fact about the progress of a job. */
export type JobEvent = EventShape

/** The options of `job.watch`. */
export interface WatchOptions {
  /** The cursor of the last event that you have seen. */
  after?: number | undefined
  /** Instead of `after`: the seq of the last event that you have seen. */
  lastSeq?: number | undefined
  /** Aborts the watch. */
  signal?: AbortSignal | undefined
  /** Called if the next events are no longer kept, with the current state of the job; the watch continues from there. */
  onReset?: ((state: JobStateShape) => void) | undefined
  /** Called with an error before the watch reconnects, and with null after it has. If it throws, the watch ends. */
  onTrouble?: ((error: unknown) => void) | undefined
}
