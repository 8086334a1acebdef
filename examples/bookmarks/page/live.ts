import { type Bookmark, parseBookmark } from './bookmark.ts'

const AGAIN_MS = 1_000

export interface LiveOptions {
  /** The stream is open: what changes from now on is heard. */
  opened(): void
  changed(bookmark: Bookmark): void
  lost(): void
}

/** Changes of bookmarks as they happen, over a stream that comes again when it breaks off. */
export function followChanges({ opened, changed, lost }: LiveOptions): void {
  let source: EventSource | null = null
  let again = 0

  function open(): void {
    clearTimeout(again)
    source?.close()
    // A browser has six connections for a site, whatever the number of its tabs: one that nobody looks at has none.
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
      // What broke off the browser opens again by itself; what was refused it gives up.
      if (stream.readyState === EventSource.CLOSED) again = window.setTimeout(open, AGAIN_MS)
    }
  }

  document.addEventListener('visibilitychange', open)
  addEventListener('online', open)
  addEventListener('offline', lost)
  open()
}
