import { randomUUID } from 'node:crypto'
import type { DatabaseSync } from 'node:sqlite'
import { z } from 'zod'

const row = z.object({
  n: z.int(),
  id: z.string(),
  user_id: z.string(),
  url: z.string(),
  source_hint: z.string().nullable(),
  created_from: z.string(),
  idempotency_key: z.string(),
  created_at: z.int(),
  version: z.int(),
  round: z.int(),
  job_id: z.string().nullable(),
  llm_status: z.enum(['processing', 'retrying', 'done', 'failed']),
  step: z.enum(['fetch', 'extraction', 'llm_processing']).nullable(),
  retry_at: z.int().nullable(),
  title: z.string().nullable(),
  summary: z.string().nullable(),
  error_code: z.string().nullable(),
  error_message: z.string().nullable(),
})
export type BookmarkRow = z.infer<typeof row>
export type Step = NonNullable<BookmarkRow['step']>

export interface NewBookmark {
  userId: string
  url: string
  normalUrl: string
  sourceHint: string | null
  createdFrom: string
  key: string
  nowMs: number
}

/** A round of processing of a bookmark. It identifies late writes. */
export type Round = Pick<BookmarkRow, 'id' | 'round'>

const IS_OPEN = `llm_status IN ('processing', 'retrying')`
const OF_ROUND = `id = :id AND round = :round AND ${IS_OPEN}`

/** Every write of processing names its round, so the end of a replaced job changes nothing. */
export class BookmarkTable {
  readonly #database: DatabaseSync

  constructor(database: DatabaseSync) {
    this.#database = database
  }

  /** Returns a new bookmark for the page, or the existing one of this user. */
  save({ userId, url, normalUrl, sourceHint, createdFrom, key, nowMs }: NewBookmark): {
    made: boolean
    bookmark: BookmarkRow
  } {
    const { changes } = this.#database
      .prepare(
        `INSERT INTO bookmarks (id, user_id, url, normal_url, source_hint, created_from, idempotency_key, created_at, llm_status)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'processing') ON CONFLICT (user_id, normal_url) DO NOTHING`,
      )
      .run(randomUUID(), userId, url, normalUrl, sourceHint, createdFrom, key, nowMs)
    const found = this.#database
      .prepare('SELECT * FROM bookmarks WHERE user_id = ? AND normal_url = ?')
      .get(userId, normalUrl)
    return { made: changes === 1, bookmark: row.parse(found) }
  }

  find(id: string): BookmarkRow | null {
    const found = this.#database.prepare('SELECT * FROM bookmarks WHERE id = ?').get(id)
    return found === undefined ? null : row.parse(found)
  }

  /** Lists the latest first. `before` is the number of the previous page's last bookmark. */
  list(userId: string, limit: number, before: number): BookmarkRow[] {
    const statement = 'SELECT * FROM bookmarks WHERE user_id = ? AND n < ? ORDER BY n DESC LIMIT ?'
    return this.#all(statement, userId, before, limit)
  }

  /** Bookmarks whose processing has not ended. */
  listOpen(): BookmarkRow[] {
    return this.#all(`SELECT * FROM bookmarks WHERE ${IS_OPEN} ORDER BY n`)
  }

  /** Bookmarks that still need a job. */
  listWithoutJob(): BookmarkRow[] {
    return this.#all(`SELECT * FROM bookmarks WHERE ${IS_OPEN} AND job_id IS NULL ORDER BY n`)
  }

  /** Returns false if another call has set the job. */
  setJob({ id, round }: Round, jobId: string): boolean {
    return this.#run(
      `UPDATE bookmarks SET version = version + 1, job_id = :jobId WHERE ${OF_ROUND} AND job_id IS NULL`,
      { id, round, jobId },
    )
  }

  setProgress(
    { id, round }: Round,
    status: 'processing' | 'retrying',
    step: Step | null,
    retryAtMs: number | null,
  ): boolean {
    return this.#run(
      `UPDATE bookmarks SET version = version + 1, llm_status = :status, step = :step, retry_at = :retryAtMs
       WHERE ${OF_ROUND} AND (llm_status, step, retry_at) IS NOT (:status, :step, :retryAtMs)`,
      { id, round, status, step, retryAtMs },
    )
  }

  finish({ id, round }: Round, title: string, summary: string): boolean {
    return this.#run(
      `UPDATE bookmarks SET version = version + 1, llm_status = 'done', title = :title, summary = :summary,
         step = NULL, retry_at = NULL, error_code = NULL, error_message = NULL
       WHERE ${OF_ROUND}`,
      { id, round, title, summary },
    )
  }

  fail({ id, round }: Round, code: string, message: string): boolean {
    return this.#run(
      `UPDATE bookmarks SET version = version + 1, llm_status = 'failed', retry_at = NULL, error_code = :code, error_message = :message
       WHERE ${OF_ROUND}`,
      { id, round, code, message },
    )
  }

  /** Starts the next round, unless one is running. */
  begin({ id, round }: Round): boolean {
    return this.#run(
      `UPDATE bookmarks SET version = version + 1, llm_status = 'retrying', round = round + 1, job_id = NULL, step = NULL
       WHERE id = :id AND round = :round AND NOT ${IS_OPEN}`,
      { id, round },
    )
  }

  /** Starts a new round because the job was deleted and its outcome is unknown. */
  beginInstead({ id, round }: Round): boolean {
    return this.#run(`UPDATE bookmarks SET version = version + 1, round = round + 1, job_id = NULL WHERE ${OF_ROUND}`, {
      id,
      round,
    })
  }

  #all(statement: string, ...values: (string | number)[]): BookmarkRow[] {
    return row.array().parse(this.#database.prepare(statement).all(...values))
  }

  #run(statement: string, values: Record<string, string | number | null>): boolean {
    return this.#database.prepare(statement).run(values).changes === 1
  }
}
