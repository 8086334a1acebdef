/** What identifies an event. */
export interface EventName {
  jobId: string
  stage: string
  /** With its attempt in it where each attempt counts anew. */
  seq: number
}

/** An event as it is kept. */
export interface StoredEvent extends EventName {
  domain: string
  /** The cursor: gapless within the job. */
  n: number
  /** JSON text. */
  data: string
  createdAtMs: number
}
