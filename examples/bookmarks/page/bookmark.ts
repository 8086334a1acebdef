import type { BookmarkShape } from '../shapes.ts'

/** The form of `GET /v1/bookmarks`. */
export type Bookmark = BookmarkShape

/** Throws no TypeError: `fetch` uses that for a lost network, and the outbox would wait for the network. */
export function parseBookmark(value: unknown): Bookmark {
  if (!isBookmark(value)) throw new Error('The server answered with something that is no bookmark')
  return value
}

export function parsePage(value: unknown): { data: Bookmark[]; next_cursor: string | null } {
  const { data, next_cursor } = Object(value)
  if (!Array.isArray(data)) throw new Error('The server answered with something that is no list')
  return { data: data.map(parseBookmark), next_cursor: typeof next_cursor === 'string' ? next_cursor : null }
}

/** The answer may come from something between us and the server. */
function isBookmark(value: unknown): value is Bookmark {
  const { id, url, created_at, llm_status } = Object(value)
  return [id, url, created_at, llm_status].every((member) => typeof member === 'string')
}

/** The body of `POST /v1/bookmarks`. */
export interface Save {
  url: string
  source_hint: string
  created_from: 'web' | 'bookmarklet' | 'share'
}

/** S3 §5. */
export interface BookmarkUiState {
  status: 'saving' | 'processing' | 'done' | 'failed' | 'retrying'
  canRetry: boolean
  errorMessage?: string
}

const SOURCES: [source: string, hosts: RegExp][] = [
  ['video', /(^|\.)(youtube\.com|youtu\.be|vimeo\.com|nicovideo\.jp)$/],
  ['social', /(^|\.)(x\.com|twitter\.com|bsky\.app|threads\.net|mastodon\.\w+)$/],
  ['code', /(^|\.)(github\.com|gitlab\.com|codeberg\.org)$/],
]

/** A guess at the sort of page behind an address. */
export function sourceHint(url: URL): string {
  return SOURCES.find(([, hosts]) => hosts.test(url.hostname))?.[0] ?? 'article'
}
