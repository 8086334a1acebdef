import { type Bookmark, parsePage } from './bookmark.ts'

const NAME = 'bookmarks-last-seen'
const COUNT_MAX = 50

/** The latest bookmarks as they were seen last, for when the server is out of reach. */
export function recall(): Bookmark[] {
  try {
    return parsePage({ data: JSON.parse(localStorage.getItem(NAME) ?? '[]') }).data
  } catch {
    // Blocked, or of another version of this page.
    return []
  }
}

export function remember(latestFirst: readonly Bookmark[]): void {
  try {
    localStorage.setItem(NAME, JSON.stringify(latestFirst.slice(0, COUNT_MAX)))
  } catch {
    // Blocked or full: the list is shown all the same.
  }
}
