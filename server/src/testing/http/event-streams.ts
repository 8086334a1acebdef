import type { ServerResponse } from 'node:http'
import type { EventShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { afterEach } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { only } from '../store/scene.ts'
import type { TestApp } from './app.ts'
import { openSse, type SseClient } from './sse.ts'

const POLL_MS = 1_000
export const HOUR_MS = 3_600_000

/** The test sets the poll interval, and how far the world's clock is ahead. */
export const pace = { pollMs: POLL_MS, aheadMs: 0 }
export const world: World = {
  ...realWorld,
  monotonic: () => realWorld.monotonic() + pace.aheadMs,
  after: (ms, callback) => realWorld.after(ms === POLL_MS ? pace.pollMs : ms, callback),
}

/** Opens streams that are closed at the end of the test. */
export function streamClients(): { open: typeof openSse; clients: readonly SseClient[] } {
  const clients: SseClient[] = []
  afterEach(() => {
    pace.pollMs = POLL_MS
    pace.aheadMs = 0
    for (const client of clients.splice(0)) client.close()
  })
  return {
    clients,
    async open(url, headers) {
      const client = await openSse(url, headers)
      clients.push(client)
      return client
    },
  }
}

export const pathOf = (jobId: string, query = '') => `/v1/jobs/${jobId}/events${query}`

export const eventsOf = ({ frames }: SseClient) =>
  frames.filter(({ event }) => event === 'message').map(({ data }) => data as EventShape)
export const cursorsOf = (client: SseClient) => eventsOf(client).map(({ cursor }) => cursor)
export const upTo = (last: number, first = 1) => Array.from({ length: last - first + 1 }, (_, i) => first + i)

export const CURRENT = 'ichido_event_subscribers{pace="current"}'
export const BEHIND = 'ichido_event_subscribers{pace="behind"}'
export const broken = (how: string) => `ichido_event_streams_broken_total{how="${how}"}`

/** The value of a node's metric, or 0. */
export async function metric({ call }: TestApp, name: string): Promise<number> {
  const { text } = await call('GET', '/metrics')
  const line = text.split('\n').find((each) => each.startsWith(`${name} `))
  return Number(line?.split(' ').at(-1) ?? 0)
}

/** Opens something, and finds the server's response to it. */
export async function answering<T>(
  { app }: TestApp,
  open: () => Promise<T>,
): Promise<{ opened: T; response: ServerResponse }> {
  const responses: ServerResponse[] = []
  const listen = (_: unknown, response: ServerResponse) => void responses.push(response)
  app.server.on('request', listen)
  const opened = await open()
  app.server.off('request', listen)
  return { opened, response: only(responses) }
}
