import { request } from 'node:http'
import { until } from '../store/store.ts'

export interface SseFrame {
  event: string
  id: string | null
  data: unknown
}

export interface SseClient {
  status: number
  headers: Record<string, unknown>
  /** All frames so far. */
  frames: SseFrame[]
  /** The ids of frames, and ids that came without a frame. */
  ids: string[]
  heartbeats(): number
  /** Stops reading, or continues. */
  pause(): void
  resume(): void
  /** Resolves when the server has ended the stream, with true if it ended properly. */
  ended: Promise<boolean>
  close(): void
  /** Resolves when this many frames have arrived. */
  count(frames: number): Promise<SseFrame[]>
}

/** A client of server-sent events that can read slowly, and shows details that an EventSource hides. */
export function openSse(url: string, headers: Record<string, string> = {}): Promise<SseClient> {
  return new Promise((resolve, reject) => {
    const asking = request(url, { headers: { accept: 'text/event-stream', ...headers }, agent: false })
    asking.on('error', reject)
    asking.on('response', (response) => {
      const frames: SseFrame[] = []
      const ids: string[] = []
      let heartbeats = 0
      let open = ''
      response.setEncoding('utf8').on('data', (part: string) => {
        const blocks = (open + part).split('\n\n')
        open = blocks.pop() ?? ''
        for (const block of blocks) {
          const field = (name: string) => new RegExp(`(?:^|\n)${name}: ([^\n]*)`).exec(block)?.[1]
          const [data, id] = [field('data'), field('id')]
          if (id !== undefined) ids.push(id)
          if (block.startsWith(':')) heartbeats++
          else if (data !== undefined) {
            frames.push({ event: field('event') ?? 'message', id: id ?? null, data: JSON.parse(data) })
          }
        }
      })
      const ended = new Promise<boolean>((settle) => {
        response.on('error', () => {})
        response.on('close', () => settle(response.complete))
      })
      resolve({
        status: response.statusCode ?? 0,
        headers: response.headers,
        frames,
        ids,
        heartbeats: () => heartbeats,
        pause: () => void response.pause(),
        resume: () => void response.resume(),
        ended,
        close: () => void asking.destroy(),
        async count(count) {
          await until(`${count} frames`, async () => frames.length >= count)
          return frames
        },
      })
    })
    asking.end()
  })
}
