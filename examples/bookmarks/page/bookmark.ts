import type { BookmarkShape } from '../shapes.ts'

/** As `GET /v1/bookmarks` has it. */
export type Bookmark = BookmarkShape

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
