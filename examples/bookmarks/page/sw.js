// Keeps the page itself, so that it opens without a network. The server fills in the version and the list of its files.
const CACHE = 'bookmarks-__VERSION__'
const FILES = __FILES__
/** The list as it was last seen is better than none. */
const LIST = '/v1/bookmarks'

addEventListener('install', (event) => {
  // Around the browser's own cache: a new version is new in all of its files.
  const fresh = FILES.map((path) => new Request(path, { cache: 'reload' }))
  event.waitUntil(
    caches
      .open(CACHE)
      .then((cache) => cache.addAll(fresh))
      .then(() => skipWaiting()),
  )
})

addEventListener('activate', (event) => {
  event.waitUntil(
    (async () => {
      for (const name of await caches.keys()) if (name !== CACHE) await caches.delete(name)
      await clients.claim()
    })(),
  )
})

addEventListener('fetch', (event) => {
  const { request } = event
  const { origin, pathname, search } = new URL(request.url)
  if (request.method !== 'GET' || origin !== location.origin) return
  if (FILES.includes(pathname)) event.respondWith(file(request))
  if (pathname === LIST && search === '') event.respondWith(list(request))
})

async function file(request) {
  // The bookmarklet and Share open the page with an address in its query.
  return (await caches.match(request, { ignoreSearch: true })) ?? fetch(request)
}

async function list(request) {
  const cache = await caches.open(CACHE)
  try {
    const answer = await fetch(request)
    if (answer.ok) await cache.put(request, answer.clone())
    return answer
  } catch (error) {
    const kept = await cache.match(request)
    if (kept === undefined) throw error
    return kept
  }
}
