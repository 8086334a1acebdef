import type { BookmarkRow } from './bookmark-table.ts'
import type { FailedJobRow } from './failed-job-table.ts'
import { isHopeless } from './job.ts'

/** The JSON form of rows. */

const instant = (ms: number) => new Date(ms).toISOString()

export function bookmarkShape(row: BookmarkRow) {
  const { id, url, source_hint, created_from, title, summary, llm_status, step, retry_at, job_id, version } = row
  const { created_at, error_code, error_message, idempotency_key } = row
  return {
    id,
    url,
    source_hint,
    created_from,
    idempotency_key,
    created_at: instant(created_at),
    title,
    summary,
    llm_status,
    step,
    retry_at: retry_at === null ? null : instant(retry_at),
    error:
      llm_status !== 'failed' || error_code === null
        ? null
        : { code: error_code, message: error_message ?? '', retryable: !isHopeless(error_code) },
    job_id,
    version,
  }
}
export type BookmarkShape = ReturnType<typeof bookmarkShape>

export function failedJobShape({ n: _, failed_at, ...row }: FailedJobRow) {
  return { ...row, failed_at: instant(failed_at) }
}
