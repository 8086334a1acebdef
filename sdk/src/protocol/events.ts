import type { JobState } from './jobs.ts'

/** A fact about the progress of a job. */
export interface EventShape {
  /** A number without gaps within the job, in the order of delivery. */
  cursor: number
  stage: string
  seq: number
  data: unknown
  timestamp: string
}

/** The state of a job, its last event, and the last event of each stage in which workers publish. */
export interface JobStateShape {
  job_id: string
  domain: string
  state: JobState
  attempt: number
  /** Null after retention has removed the events. */
  event: EventShape | null
  stages: Record<string, EventShape>
}

/** A token for the events of one job, for a few minutes, for browsers that cannot send a header. */
export interface StreamTokenShape {
  token: string
  expires_at: string
}

/** An event in the list of all jobs. */
export interface EventOfAllShape extends EventShape {
  job_id: string
  kind: string
  queue: string
  domain: string
}

export interface EventsOfAllShape {
  data: EventOfAllShape[]
  /** Where the list continues, now or later. */
  next_cursor: string
  /** There are no more events yet. */
  caught_up: boolean
}
