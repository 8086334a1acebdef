import { get, type IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { HttpConnection } from '../ichido/http-connection.ts'
import type { Asked } from './browser.ts'

/** How many dashboards are open, by the page that they show. */
export const OPEN = { overview: 20, jobs: 20, job: 10 } as const
export type Shown = keyof typeof OPEN
export const VIEWERS = Object.values(OPEN).reduce((sum, count) => sum + count, 0)

/** Calls that a page made only once while it was watched are not repeated. */
function periodsOf({ calls }: Asked, watchedMs: number) {
  return [...calls].flatMap(([path, { times, cacheControl }]) =>
    times < 2 ? [] : [{ path, cacheControl, periodMs: watchedMs / (times - 1) }],
  )
}

/** Opens dashboards that ask for what pages have asked for, as often. Resolves, when they are open, with their end. */
export async function openViewers(
  url: string,
  pages: Readonly<Record<Shown, Asked>>,
  watchedMs: number,
): Promise<() => Promise<void>> {
  const stop = new AbortController()
  const viewers = Object.entries(pages).flatMap(([shown, asked]) =>
    Array.from({ length: OPEN[shown as Shown] }, () => openViewer(url, asked, watchedMs, stop.signal)),
  )
  const polls = (await Promise.all(viewers)).flat()
  return async () => {
    stop.abort()
    await Promise.all(polls)
  }
}

async function openViewer(url: string, asked: Asked, watchedMs: number, signal: AbortSignal): Promise<Promise<void>[]> {
  for (const path of asked.streams) await openStream(`${url}${path}`, signal)
  return periodsOf(asked, watchedMs).map(async ({ path, cacheControl, periodMs }) => {
    const connection = await HttpConnection.open(url)
    const rest = (ms: number) => sleep(ms, undefined, { signal }).catch(() => {})
    // Dashboards are opened at any time, so their polls do not come together.
    for (await rest(Math.random() * periodMs); !signal.aborted; await rest(periodMs)) {
      await connection.get(path, `accept: */*\r\ncache-control: ${cacheControl}`)
    }
    connection.close()
  })
}

function openStream(url: string, signal: AbortSignal): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const request = get(url, { headers: { accept: 'text/event-stream' }, agent: false }, (answer) => {
      answer.resume().on('error', () => {})
      resolve(answer)
    })
    request.on('error', reject)
    signal.addEventListener('abort', () => request.destroy())
  })
}
