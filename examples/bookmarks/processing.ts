import { type Ichido, IchidoError, type Job, type JobDetail } from 'ichido'
import { z } from 'zod'
import type { BookmarkRow, BookmarkTable, Step } from './bookmark-table.ts'
import type { FailedJobTable } from './failed-job-table.ts'
import { type BookmarkProcessing, isHopeless, keyOf, messageOf, processBookmark } from './job.ts'
import type { Network } from './reading/fetch-page.ts'
import type { Summariser } from './reading/summarise.ts'

const AGAIN_MS = 2_000
const CONCURRENCY = 4

const stepEvent = z.object({ step: z.enum(['fetch', 'extraction', 'llm_processing']) })

export interface ProcessingDeps {
  ichido: Ichido
  kind: BookmarkProcessing
  bookmarks: BookmarkTable
  failedJobs: FailedJobTable
  network: Network
  summariser: Summariser
  /** Called when a bookmark has changed. */
  changed(bookmarkId: string): void
  onTrouble(error: unknown): void
}

/** Submits bookmarks to Ichido, and records the outcomes of their jobs. */
export class Processing {
  readonly #deps: ProcessingDeps
  readonly #closed = new AbortController()
  #willSubmit = false

  constructor(deps: ProcessingDeps) {
    this.#deps = deps
  }

  /** Continues everything that was in progress when the application ended, in whatever way. */
  start(): void {
    const { ichido, kind, network, summariser, bookmarks } = this.#deps
    ichido.handle(kind, (context) => processBookmark(context, network, summariser), { concurrency: CONCURRENCY })
    for (const bookmark of bookmarks.listOpen()) if (bookmark.job_id !== null) this.#follow(bookmark, bookmark.job_id)
    void this.submitMissing()
  }

  /**
   * The bookmark is in one database, its job in another, and a crash can come in between. So this function creates
   * all jobs, from rows without one, after a save and at a start. The key is derived from the row: a repeat gives the same job.
   */
  async submitMissing(): Promise<void> {
    try {
      for (const bookmark of this.#deps.bookmarks.listWithoutJob()) {
        // A bookmark that cannot be submitted does not delay those after it.
        await this.#submit(bookmark).catch((error: unknown) => this.#submitAgain(error))
      }
    } catch (error) {
      this.#submitAgain(error)
    }
  }

  close(): void {
    this.#closed.abort()
  }

  async #submit(bookmark: BookmarkRow): Promise<void> {
    const { ichido, kind, bookmarks } = this.#deps
    const job = await ichido.submit(kind, messageOf(bookmark, 1), { key: keyOf(bookmark) })
    if (bookmarks.setJob(bookmark, job.id)) this.#follow(bookmark, job.id)
  }

  /** One retry serves all failures, because it takes every row without a job. */
  #submitAgain(error: unknown): void {
    this.#trouble(error)
    if (this.#willSubmit) return
    this.#willSubmit = true
    this.#later(() => {
      this.#willSubmit = false
      void this.submitMissing()
    })
  }

  #follow(bookmark: BookmarkRow, jobId: string): void {
    this.#toItsEnd(bookmark, jobId).catch((error: unknown) => {
      this.#trouble(error)
      this.#later(() => this.#follow(bookmark, jobId))
    })
  }

  async #toItsEnd(bookmark: BookmarkRow, jobId: string): Promise<void> {
    const { ichido, kind, bookmarks, changed } = this.#deps
    const job = ichido.job(jobId, kind)
    let step: Step | null = null
    try {
      for await (const event of job.watch({ signal: this.#closed.signal })) {
        step = stepEvent.safeParse(event.data).data?.step ?? step
        const { state, retry_count, run_at } = await job.get()
        const status = retry_count > 0 || bookmark.round > 1 ? 'retrying' : 'processing'
        const isWaiting = retry_count > 0 && state === 'PENDING'
        const retryAtMs = isWaiting ? Date.parse(run_at) : null
        if (bookmarks.setProgress(bookmark, status, isWaiting ? null : step, retryAtMs)) changed(bookmark.id)
      }
      await this.#end(bookmark, job, await job.get(), step ?? 'fetch')
    } catch (error) {
      if (!(error instanceof IchidoError && error.code === 'NOT_FOUND')) throw error
      if (bookmarks.beginInstead(bookmark)) await this.submitMissing()
    }
    changed(bookmark.id)
  }

  async #end(
    bookmark: BookmarkRow,
    job: Job<{ title: string; summary: string }>,
    detail: JobDetail,
    step: Step,
  ): Promise<void> {
    const { bookmarks, failedJobs } = this.#deps
    if (detail.state === 'SUCCEEDED') {
      const { title, summary } = await job.result()
      bookmarks.finish(bookmark, title, summary)
      return
    }
    const { code, message } = detail.error ?? { code: detail.state, message: `The job ended: ${detail.state}` }
    // These writes are repeatable. The order keeps the bookmark open until its failed job is recorded.
    failedJobs.add({
      jobId: job.id,
      bookmarkId: bookmark.id,
      jobType: step,
      errorMessage: message,
      payload: messageOf(bookmark, detail.attempt),
      failedAtMs: Date.parse(detail.finished_at ?? detail.created_at),
      retryable: !isHopeless(code),
    })
    bookmarks.fail(bookmark, code, message)
  }

  #trouble(error: unknown): void {
    if (!this.#closed.signal.aborted) this.#deps.onTrouble(error)
  }

  #later(callback: () => void): void {
    const { signal } = this.#closed
    if (signal.aborted) return
    const callOff = () => clearTimeout(timer)
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', callOff)
      callback()
    }, AGAIN_MS)
    signal.addEventListener('abort', callOff, { once: true })
  }
}
