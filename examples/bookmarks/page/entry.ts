import type { OutboxItem } from '@ichido/sdk/outbox'
import type { Bookmark, BookmarkUiState, Save } from './bookmark.ts'
import { currentLanguage, say, sayError } from './words.ts'

/** A line of the list: a bookmark of the server, or one that is not yet sent. */
export interface Entry {
  id: string
  url: string
  title: string
  summary: string
  savedAt: Date
  state: BookmarkUiState
  /** The status in words. */
  label: string
  detail: string
  /** The server never accepted it, so the user can drop it. */
  canDrop: boolean
}

export function entryOfBookmark(bookmark: Bookmark): Entry {
  const { id, url, llm_status: status, error, title, summary, created_at } = bookmark
  const state: BookmarkUiState = { status, canRetry: status === 'failed' && error?.retryable === true }
  if (status === 'failed') state.errorMessage = say('failed')
  return {
    id,
    url,
    title: title || withoutScheme(url),
    summary: summary ?? '',
    savedAt: new Date(created_at),
    state,
    label: say(status),
    detail: detailOf(bookmark),
    canDrop: false,
  }
}

function detailOf({ llm_status, step, retry_at, error }: Bookmark): string {
  if (llm_status === 'done') return ''
  if (llm_status === 'failed') return error === null ? '' : sayError(error.code, error.message)
  if (retry_at !== null) return say('nextAt', { time: timeOf(new Date(retry_at)) })
  return say(step ?? 'waiting')
}

export function entryOfSave({ id, body, savedAtMs, status, error = '' }: OutboxItem<Save>, isOnline: boolean): Entry {
  const failed = status === 'failed'
  const state: BookmarkUiState = { status: failed ? 'failed' : 'saving', canRetry: failed }
  if (failed) state.errorMessage = say('saveFailed')
  return {
    id,
    url: body.url,
    title: withoutScheme(body.url),
    summary: '',
    savedAt: new Date(savedAtMs),
    state,
    label: say(failed ? 'saveFailed' : 'saving'),
    detail: failed ? error : isOnline ? '' : say('savingOffline'),
    canDrop: failed,
  }
}

const withoutScheme = (url: string) => url.replace(/^https?:\/\/(www\.)?/, '').replace(/\/$/, '')

const timeOf = (date: Date) => date.toLocaleTimeString(currentLanguage(), { hour: '2-digit', minute: '2-digit' })
