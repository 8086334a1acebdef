/** An event as it is kept. */
export interface StoredEvent {
  jobId: string
  domain: string
  /** The cursor: gapless within the job. */
  n: number
  stage: string
  /** With its attempt in it where each attempt counts anew. */
  seq: number
  /** JSON text. */
  data: string
  createdAtMs: number
}
