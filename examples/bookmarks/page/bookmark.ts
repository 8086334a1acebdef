import type { BookmarkShape } from '../shapes.ts'

/** As `GET /v1/bookmarks` has it. */
export type Bookmark = BookmarkShape

/** What it throws is no TypeError: that is how `fetch` says that there is no network, and the outbox would wait for one. */
export function parseBookmark(value: unknown): Bookmark {
  if (!isBookmark(value)) throw new Error('The server answered with something that is no bookmark')
  return value
}

export function parsePage(value: unknown): { data: Bookmark[]; next_cursor: string | null } {
  const { data, next_cursor } = Object(value)
  if (!Array.isArray(data)) throw new Error('The server answered with something that is no list')
  return { data: data.map(parseBookmark), next_cursor: typeof next_cursor === 'string' ? next_cursor : null }
}

/** The server has made it; what stands between us and it may have not. */
function isBookmark(value: unknown): value is Bookmark {
  const { id, url, created_at, llm_status } = Object(value)
  return [id, url, created_at, llm_status].every((member) => typeof member === 'string')
}

/** What `POST /v1/bookmarks` takes. */
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

/** What sort of page an address seems to lead to. */
export function sourceHint(url: URL): string {
  return SOURCES.find(([, hosts]) => hosts.test(url.hostname))?.[0] ?? 'article'
}
