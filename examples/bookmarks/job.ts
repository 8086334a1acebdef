import { defineKind, Fatal, type HandlerContext } from 'ichido'
import { z } from 'zod'
import type { BookmarkRow, Step } from './bookmark-table.ts'
import { extract } from './reading/extract.ts'
import { fetchPage, type Network } from './reading/fetch-page.ts'
import type { Summariser } from './reading/summarise.ts'

const MAX_ATTEMPTS = 3
/** S3 §4: 2^n · 60 s after attempt n. The first retry follows attempt 1. */
export const RETRY_BASE_SECONDS = 2 * 60
/** Above the longest delay, so that it shortens none. */
const RETRY_CAP_SECONDS = RETRY_BASE_SECONDS * 2 ** MAX_ATTEMPTS
/** Fetching has a timeout of 15 s; the rest is for a language model. */
const TIMEOUT_SECONDS = 120

/**
 * S3's BookmarkProcessingMessage. A payload never changes, so `attempt` is the first one; `messageOf` gives the current
 * one.
 */
const message = z.object({
  bookmark_id: z.uuid(),
  attempt: z.int(),
  max_attempts: z.int(),
  original_request: z.object({ url: z.string(), idempotency_key: z.string() }),
})
export type Message = z.infer<typeof message>

export const bookmarkProcessing = (retryBaseSeconds: number) =>
  defineKind('bookmark-processing', {
    queue: 'bookmarks',
    payload: message,
    result: z.object({ title: z.string(), summary: z.string() }),
    maxAttempts: MAX_ATTEMPTS,
    // The default jitter shortens the delay by up to a tenth, so that retries of many pages of one site do not coincide.
    backoff: { baseSeconds: retryBaseSeconds, capSeconds: RETRY_CAP_SECONDS },
    timeoutSeconds: TIMEOUT_SECONDS,
  })
export type BookmarkProcessing = ReturnType<typeof bookmarkProcessing>

export function messageOf({ id, url, idempotency_key }: BookmarkRow, attempt: number): Message {
  return { bookmark_id: id, attempt, max_attempts: MAX_ATTEMPTS, original_request: { url, idempotency_key } }
}

/** Each round of a bookmark is a separate job. A round that is submitted again after a crash is the same job. */
export const keyOf = ({ id, round }: Pick<BookmarkRow, 'id' | 'round'>) => `bookmark-${id}-${round}`

/** A user's retry cannot help either: the address or its content is not acceptable. */
const HOPELESS = ['ADDRESS_REFUSED', 'NOT_A_PAGE']
export const isHopeless = (code: string) => HOPELESS.includes(code)

/** Fetches, extracts and summarises. It writes nothing: its return value counts once, when the job's outcome is accepted. */
export async function processBookmark(
  { payload, signal, progress }: HandlerContext<Message>,
  network: Network,
  summariser: Summariser,
): Promise<{ title: string; summary: string }> {
  const at = (step: Step) => progress({ step })
  await at('fetch')
  const page = await fetchPage(payload.original_request.url, network, signal)
  await at('extraction')
  const article = extract(page)
  await at('llm_processing')
  const summary = await summariser.summarise(article, signal)
  if (summary.trim() === '') throw new Fatal('NO_TEXT', 'Nothing could be made of the text')
  return { title: article.title, summary }
}
