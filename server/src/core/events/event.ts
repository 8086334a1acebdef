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

/** An event that another program has put into a stream. It has no place in the store yet, and no cursor. */
export interface ForeignEvent extends EventName {
  /** JSON text. */
  data: string
}

export interface IngestedEvent {
  event: StoredEvent
  /** It is the last one of its job so far. */
  last: boolean
}
