import { createCall } from '@ichido/sdk/client'
import type { OutboxItem } from '@ichido/sdk/outbox'
import { type Bookmark, type Save, sourceHint } from './bookmark.ts'
import { element } from './dom.ts'
import { type Entry, entryOfBookmark, entryOfSave } from './entry.ts'
import { ListView } from './list-view.ts'
import { followChanges } from './live.ts'
import { openSaves } from './saves.ts'
import { choose, currentLanguage, type Language, say, speak } from './words.ts'

const call = createCall({ url: location.origin })
const bookmarks = new Map<string, Bookmark>()
const saves = new Map<string, OutboxItem<Save>>()
let isLive = false
let nextCursor: string | null = null
/** Of the address that was filled in by a bookmarklet or by Share. */
let createdFrom: Save['created_from'] = 'web'

const view = new ListView({ retry, drop: (id) => outbox.drop(id) })
const form = element('save', HTMLFormElement)
const input = element('url', HTMLInputElement)
const more = element('more', HTMLButtonElement)

const outbox = await openSaves(call, ({ item, dropped }) => {
  if (dropped || item.status === 'sent') saves.delete(item.id)
  else saves.set(item.id, item)
  if (item.answer !== undefined) note(item.answer)
  show()
})

/** Pages that are on their way first, then the latest. */
function show(): void {
  const waiting = [...saves.values()].reverse().map((item) => entryOfSave(item, isLive))
  const known = [...bookmarks.values()].sort(latestFirst).map(entryOfBookmark)
  const entries: Entry[] = [...waiting, ...known]
  view.show(entries)
  element('none').hidden = entries.length > 0
  more.hidden = nextCursor === null
  const live = element('live')
  live.dataset.live = isLive ? 'on' : 'waiting'
  live.textContent = say(isLive ? 'live' : 'offline')
}

function latestFirst(one: Bookmark, other: Bookmark): number {
  return other.created_at.localeCompare(one.created_at) || other.id.localeCompare(one.id)
}

/** A bookmark as it is now, unless it is one of the older ones that are not shown yet. */
function note(bookmark: Bookmark): void {
  bookmarks.set(bookmark.id, bookmark)
}

async function load(cursor: string | null): Promise<void> {
  const query = cursor === null ? '' : `?${new URLSearchParams({ cursor })}`
  const { body } = await call('GET', `/v1/bookmarks${query}`)
  const page = body as { data: Bookmark[]; next_cursor: string | null }
  for (const bookmark of page.data) note(bookmark)
  if (cursor !== null || nextCursor === null) nextCursor = page.next_cursor
  show()
}

async function retry(id: string): Promise<void> {
  problem(null)
  if (saves.has(id)) {
    await outbox.retry(id)
    return
  }
  const bookmark = bookmarks.get(id)
  if (bookmark === undefined) return
  try {
    note((await call('POST', `/v1/bookmarks/${id}/reprocess`)).body as Bookmark)
  } catch (error) {
    problem(navigator.onLine && error instanceof Error ? error.message : say('notHeard'))
  }
  show()
}

async function save(event: SubmitEvent): Promise<void> {
  event.preventDefault()
  problem(null)
  const url = URL.parse(input.value.trim())
  if (url === null || !['http:', 'https:'].includes(url.protocol)) {
    problem(say('notAnAddress'))
    input.focus()
    return
  }
  try {
    await outbox.put({ url: url.href, source_hint: sourceHint(url), created_from: createdFrom })
    form.reset()
    createdFrom = 'web'
    input.focus()
  } catch (error) {
    problem(say('notKept', { why: error instanceof Error ? error.message : String(error) }))
  }
}

function problem(text: string | null): void {
  const shown = element('problem')
  shown.hidden = text === null
  shown.textContent = text ?? ''
  input.setAttribute('aria-invalid', String(text !== null))
}

/** An address that came with ours is filled in and not saved: any site could send us one. */
function fillIn(): void {
  const query = new URLSearchParams(location.search)
  // Phones often share an address inside of a text.
  const [url] = `${query.get('url') ?? ''} ${query.get('text') ?? ''}`.match(/https?:\/\/\S+/) ?? []
  if (url === undefined) return
  const from = query.get('from')
  createdFrom = from === 'bookmarklet' || from === 'share' ? from : 'web'
  input.value = url
  input.focus()
  history.replaceState(null, '', location.pathname)
}

function offerBookmarklet(): void {
  const opened = `${location.origin}/?from=bookmarklet&url=`
  const code = `javascript:void open(${JSON.stringify(opened)}+encodeURIComponent(location.href),'_blank','width=560,height=720')`
  const link = element('bookmarklet', HTMLAnchorElement)
  link.href = code
  link.addEventListener('click', (event) => event.preventDefault())
  const copy = element('copy', HTMLButtonElement)
  copy.addEventListener('click', async () => {
    await navigator.clipboard.writeText(code)
    element('said').textContent = copy.textContent = say('copied')
  })
}

function changeLanguage(language: Language): void {
  choose(language)
  speak()
  problem(null)
  show()
}

for (const language of ['en', 'ja'] as const) {
  document.querySelector(`[data-language="${language}"]`)?.addEventListener('click', () => changeLanguage(language))
}
form.noValidate = true
form.addEventListener('submit', save)
more.addEventListener('click', () => load(nextCursor).catch(() => problem(say('notHeard'))))
changeLanguage(currentLanguage())
offerBookmarklet()
fillIn()
for (const item of await outbox.list()) saves.set(item.id, item)
// What was seen last, while the server is out of reach.
load(null).catch(() => {})
followChanges({
  opened() {
    isLive = true
    load(null).catch(() => {})
    outbox.flush().catch(() => {})
    show()
  },
  changed(bookmark) {
    note(bookmark)
    show()
  },
  lost() {
    isLive = false
    show()
  },
})
navigator.serviceWorker?.register('sw.js').catch(() => {})
