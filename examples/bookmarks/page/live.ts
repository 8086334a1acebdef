import { type Bookmark, parseBookmark } from './bookmark.ts'

const AGAIN_MS = 1_000

export interface LiveOptions {
  /** The stream is open, and delivers changes from now on. */
  opened(): void
  changed(bookmark: Bookmark): void
  lost(): void
}

/** Follows the changes of bookmarks over a stream that reconnects. */
export function followChanges({ opened, changed, lost }: LiveOptions): void {
  let source: EventSource | null = null
  let again = 0

  function open(): void {
    clearTimeout(again)
    source?.close()
    // A browser has six connections per site for all its tabs, so a hidden tab uses none.
    if (document.hidden) {
      lost()
      return
    }
    const stream = new EventSource('v1/bookmarks/events')
    source = stream
    stream.onopen = opened
    stream.onmessage = ({ data }) => changed(parseBookmark(JSON.parse(data)))
    stream.onerror = () => {
      lost()
      // The browser reopens a broken stream by itself, but gives up on a refused one.
      if (stream.readyState === EventSource.CLOSED) again = window.setTimeout(open, AGAIN_MS)
    }
  }

  document.addEventListener('visibilitychange', open)
  addEventListener('online', open)
  addEventListener('offline', lost)
  open()
}
