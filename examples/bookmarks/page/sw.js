// Caches the page itself, so that it opens without a network. The server fills in the version and the list of files.
const CACHE = 'bookmarks-__VERSION__'
const FILES = __FILES__

addEventListener('install', (event) => {
  // This bypasses the browser's own cache, so that all files of a new version are new.
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
  const { origin, pathname } = new URL(request.url)
  if (request.method !== 'GET' || origin !== location.origin) return
  if (FILES.includes(pathname)) event.respondWith(file(request))
})

async function file(request) {
  // The bookmarklet and Share open the page with an address in its query.
  return (await caches.match(request, { ignoreSearch: true })) ?? fetch(request)
}
