import { type Bookmark, parsePage } from './bookmark.ts'

const NAME = 'bookmarks-last-seen'
const COUNT_MAX = 50

/** The latest bookmarks that were seen, for times when the server cannot be reached. */
export function recall(): Bookmark[] {
  try {
    return parsePage({ data: JSON.parse(localStorage.getItem(NAME) ?? '[]') }).data
  } catch {
    // Storage is blocked, or has data of another version of this page.
    return []
  }
}

export function remember(latestFirst: readonly Bookmark[]): void {
  try {
    localStorage.setItem(NAME, JSON.stringify(latestFirst.slice(0, COUNT_MAX)))
  } catch {
    // Storage is blocked or full. The list is still shown.
  }
}
