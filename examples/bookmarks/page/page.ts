import { createCall } from '@ichido/sdk/client'
import type { OutboxItem } from '@ichido/sdk/outbox'
import { type Bookmark, parseBookmark, parsePage, type Save, sourceHint } from './bookmark.ts'
import { element } from './dom.ts'
import { offerBookmarklet, sharedAddress } from './elsewhere.ts'
import { entryOfBookmark, entryOfSave } from './entry.ts'
import { recall, remember } from './last-seen.ts'
import { ListView } from './list-view.ts'
import { followChanges } from './live.ts'
import { openSaves } from './saves.ts'
import { choose, say, speak } from './words.ts'

const call = createCall({ url: location.origin })
const form = element('save', HTMLFormElement)
const input = element('url', HTMLInputElement)
const more = element('more', HTMLButtonElement)
const view = new ListView({ retry, drop: async (id) => (await outbox).drop(id) })

/** The bookmarks that were seen last, until the server has answered. */
let recalled = recall()
const bookmarks = new Map(recalled.map((bookmark) => [bookmark.id, bookmark]))
let saves: OutboxItem<Save>[] = []
let isLive = false
/** The cursor of the older bookmarks; undefined until the list was read. */
let olderFrom: string | null | undefined
/** How the address came into the form. */
let createdFrom: Save['created_from'] = 'web'

/** The outbox opens while the page is already shown. Saves wait for it. */
const outbox = openSaves(call, ({ item: { answer, savedAtMs } }) => {
  if (answer !== undefined) {
    note(answer)
    if (Date.parse(answer.created_at) < savedAtMs) element('notice').textContent = say('already')
  }
  refreshSaves()
})

let refreshes = 0
/** Only the latest refresh counts, whichever answer comes last. */
async function refreshSaves(): Promise<void> {
  const mine = ++refreshes
  try {
    const kept = await (await outbox).list()
    if (mine !== refreshes) return
    saves = kept
    show()
  } catch (error) {
    problem(notKept(error))
  }
}

const notKept = (error: unknown) => say('notKept', { why: error instanceof Error ? error.message : String(error) })

/** Shows unsent pages first, then the latest bookmarks. */
function show(): void {
  // The stream can deliver a bookmark before the answer to its save.
  const arrived = new Set([...bookmarks.values()].map((bookmark) => bookmark.idempotency_key))
  const onTheirWay = saves
    .filter(({ key }) => !arrived.has(key))
    .reverse()
    .map((item) => entryOfSave(item, isLive))
  const known = [...bookmarks.values()].sort(latestFirst)
  remember(known)
  view.show([...onTheirWay, ...known.map(entryOfBookmark)])
  element('none').hidden = onTheirWay.length + known.length > 0 || olderFrom === undefined
  more.hidden = typeof olderFrom !== 'string'
  const live = element('live')
  live.dataset.live = isLive ? 'on' : 'waiting'
  live.textContent = say(isLive ? 'live' : 'offline')
}

function latestFirst(one: Bookmark, other: Bookmark): number {
  return other.created_at.localeCompare(one.created_at) || other.id.localeCompare(one.id)
}

/** A list that was requested before a change can arrive after it. */
function note(bookmark: Bookmark): void {
  const known = bookmarks.get(bookmark.id)
  if (known === undefined || known.version < bookmark.version) bookmarks.set(bookmark.id, bookmark)
}

/** Loads the latest bookmarks, or those before a cursor. */
async function load(cursor?: string): Promise<void> {
  const query = cursor === undefined ? '' : `?${new URLSearchParams({ cursor })}`
  const { data, next_cursor } = parsePage((await call('GET', `/v1/bookmarks${query}`)).body)
  for (const { id } of recalled) if (data.every((bookmark) => bookmark.id !== id)) bookmarks.delete(id)
  recalled = []
  for (const bookmark of data) note(bookmark)
  if (cursor === olderFrom) olderFrom = next_cursor
  show()
}

async function retry(id: string): Promise<void> {
  problem(null)
  try {
    if (!bookmarks.has(id)) {
      await (await outbox).retry(id)
      return
    }
    const { body } = await call('POST', `/v1/bookmarks/${id}/reprocess`)
    note(parseBookmark(body))
    show()
  } catch {
    problem(say('notHeard'))
  }
}

async function save(event: SubmitEvent): Promise<void> {
  event.preventDefault()
  problem(null)
  const url = URL.parse(input.value.trim())
  input.focus()
  if (url === null || !['http:', 'https:'].includes(url.protocol)) {
    problem(say('notAnAddress'))
    return
  }
  try {
    await (await outbox).put({ url: url.href, source_hint: sourceHint(url), created_from: createdFrom })
    form.reset()
    createdFrom = 'web'
  } catch (error) {
    problem(notKept(error))
  }
}

function problem(text: string | null): void {
  const shown = element('problem')
  shown.hidden = text === null
  shown.textContent = text
  input.ariaInvalid = String(text !== null)
  element('notice').textContent = ''
}

for (const language of ['en', 'ja'] as const) {
  document.querySelector(`[data-language="${language}"]`)?.addEventListener('click', () => {
    choose(language)
    speak()
    problem(null)
    show()
  })
}
// The page reports a wrong address in its own language, not in the browser's.
form.noValidate = true
form.addEventListener('submit', save)
more.addEventListener('click', () => {
  if (typeof olderFrom === 'string') load(olderFrom).catch(() => problem(say('notHeard')))
})
speak()
offerBookmarklet()
const shared = sharedAddress()
if (shared !== null) {
  input.value = shared.url
  createdFrom = shared.from
  input.focus()
}
refreshSaves()
followChanges({
  opened() {
    isLive = true
    load().catch(() => {})
    outbox.then((opened) => opened.flush({ onlyDue: true })).catch(() => {})
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
