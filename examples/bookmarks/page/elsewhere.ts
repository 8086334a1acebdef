import type { Save } from './bookmark.ts'
import { element } from './dom.ts'
import { say } from './words.ts'

/** Addresses from other pages, sent by the bookmarklet or by a phone's Share. */

/** The address in our query. It is only filled in, not saved, because any site could send one. */
export function sharedAddress(): { url: string; from: Save['created_from'] } | null {
  const query = new URLSearchParams(location.search)
  // Phones often share an address inside a text.
  const [url] = `${query.get('url') ?? ''} ${query.get('text') ?? ''}`.match(/https?:\/\/\S+/) ?? []
  if (url === undefined) return null
  history.replaceState(null, '', location.pathname)
  return { url, from: query.get('from') === 'bookmarklet' ? 'bookmarklet' : 'share' }
}

export function offerBookmarklet(): void {
  const opened = `${location.origin}/?from=bookmarklet&url=`
  const code = `javascript:void open('${opened}'+encodeURIComponent(location.href),'_blank','width=560,height=720')`
  const link = element('bookmarklet', HTMLAnchorElement)
  link.href = code
  // The link is for dragging. A click here would have nothing to save.
  link.addEventListener('click', (event) => event.preventDefault())
  const copy = element('copy', HTMLButtonElement)
  copy.addEventListener('click', async () => {
    await navigator.clipboard.writeText(code)
    copy.textContent = say('copied')
    element('said').textContent = say('copied')
  })
}
