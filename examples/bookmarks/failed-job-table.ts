import type { DatabaseSync } from 'node:sqlite'
import { z } from 'zod'
import type { Step } from './bookmark-table.ts'

const row = z.object({
  n: z.int(),
  id: z.string(),
  bookmark_id: z.string(),
  job_type: z.string(),
  error_message: z.string().nullable(),
  payload: z.string().transform((text): unknown => JSON.parse(text)),
  failed_at: z.int(),
  retryable: z.int().transform((value) => value === 1),
})
export type FailedJobRow = z.infer<typeof row>

export interface FailedJob {
  jobId: string
  bookmarkId: string
  /** The step at which it failed. */
  jobType: Step
  errorMessage: string
  payload: object
  failedAtMs: number
  retryable: boolean
}

/** The dead letters of processing, in the form of S3 §4. */
export class FailedJobTable {
  readonly #database: DatabaseSync

  constructor(database: DatabaseSync) {
    this.#database = database
  }

  add({ jobId, bookmarkId, jobType, errorMessage, payload, failedAtMs, retryable }: FailedJob): void {
    this.#database
      .prepare(
        `INSERT INTO failed_jobs (id, bookmark_id, job_type, error_message, payload, failed_at, retryable)
         VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
      )
      .run(jobId, bookmarkId, jobType, errorMessage, JSON.stringify(payload), failedAtMs, retryable ? 1 : 0)
  }

  /** Lists the failures of bookmarks that are still failed. Retried failures stay in the table as history. */
  list(userId: string, limit: number, before: number): FailedJobRow[] {
    const statement = `
      SELECT failed_jobs.rowid AS n, failed_jobs.* FROM failed_jobs JOIN bookmarks ON bookmarks.id = bookmark_id
      WHERE user_id = ? AND llm_status = 'failed' AND job_id = failed_jobs.id AND failed_jobs.rowid < ? ORDER BY failed_jobs.rowid DESC LIMIT ?`
    return row.array().parse(this.#database.prepare(statement).all(userId, before, limit))
  }
}
