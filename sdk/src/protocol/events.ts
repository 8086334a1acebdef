import type { JobState } from './jobs.ts'

/** A fact of a job's progress. */
export interface EventShape {
  /** Gapless within the job, in the order of delivery. */
  cursor: number
  stage: string
  seq: number
  data: unknown
  timestamp: string
}

/** How a job stands: its state, its last event, and the last one of each stage that its workers publish in. */
export interface JobStateShape {
  job_id: string
  domain: string
  state: JobState
  attempt: number
  /** Null once its events are past their time. */
  event: EventShape | null
  stages: Record<string, EventShape>
}

/** Opens the events of one job, for a few minutes: for browsers, which cannot send a token otherwise. */
export interface StreamTokenShape {
  token: string
  expires_at: string
}

/** An event among those of all jobs. */
export interface EventOfAllShape extends EventShape {
  job_id: string
  kind: string
  queue: string
  domain: string
}

export interface EventsOfAllShape {
  data: EventOfAllShape[]
  /** The list goes on from here, now or when there is more. */
  next_cursor: string
  /** There is no more yet. */
  caught_up: boolean
}
