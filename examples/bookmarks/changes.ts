import type { ServerResponse } from 'node:http'

/** The limit of unread data per reader. A slower reader must reconnect and read the list. */
const UNREAD_BYTES_MAX = 1024 * 1024
const AGAIN_MS = 500

/** Streams of changes (server-sent events), one for each open page. A change contains the whole changed bookmark. */
export class Changes {
  readonly #readers = new Map<ServerResponse, string>()

  add(userId: string, response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' })
    response.write(`retry: ${AGAIN_MS}\n\n`)
    this.#readers.set(response, userId)
    response.on('close', () => this.#readers.delete(response))
  }

  tell(userId: string, changed: object): void {
    const event = `data: ${JSON.stringify(changed)}\n\n`
    for (const [response, reader] of this.#readers) {
      if (reader !== userId) continue
      response.write(event)
      if (response.writableLength > UNREAD_BYTES_MAX) response.destroy()
    }
  }
}
