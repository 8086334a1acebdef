import { lookup } from 'node:dns/promises'
import { isIPv6 } from 'node:net'
import type { Courier, Message } from './port.ts'

/** Of an answer only the status counts. A receiver that sends more than this is cut off. */
const ANSWER_BYTES_MAX = 1_024

/** Sends over HTTP and HTTPS, with the resolver of the operating system. `close` breaks off what is on its way. */
export function openCourier(): Courier & { close(): void } {
  const closing = new AbortController()
  return {
    async resolve(host) {
      return (await lookup(host, { all: true })).map(({ address }) => address)
    },
    post: (message, signal) => post(message, AbortSignal.any([signal, closing.signal])),
    close: () => closing.abort(),
  }
}

function post({ url, address, headers, body }: Message, signal: AbortSignal): Promise<number> {
  // An `import` of node:http would also load Node's client for fetch, which takes 10 MB.
  const isSecure = url.protocol === 'https:'
  const { request: send } = isSecure ? process.getBuiltinModule('node:https') : process.getBuiltinModule('node:http')
  const family = isIPv6(address) ? 6 : 4
  return new Promise((resolve, reject) => {
    const request = send(url, {
      method: 'POST',
      headers: { ...headers, 'content-length': Buffer.byteLength(body) },
      signal,
      // A connection of its own, because a connection that is kept may lead to an address that was not checked.
      agent: false,
      // The name was resolved and checked before. A second lookup could give another address (DNS rebinding).
      lookup: (_host, { all }, done) => (all ? done(null, [{ address, family }]) : done(null, address, family)),
    })
    let status: number | null = null
    // An answer that has begun counts, even if its body never ends.
    request.on('error', (error) => (status === null ? reject(error) : resolve(status)))
    // After an answer this changes nothing. A receiver that switches protocols gives none.
    request.on(
      'close',
      () => status === null && reject(new Error('The receiver closed the connection without an answer')),
    )
    request.on('response', (response) => {
      const answered = response.statusCode ?? 0
      status = answered
      let bytes = 0
      const done = () => {
        resolve(answered)
        request.destroy()
      }
      // A short answer is read to its end, so that the receiver does not see a broken connection.
      response.on('data', (chunk: Buffer) => {
        bytes += chunk.length
        if (bytes > ANSWER_BYTES_MAX) done()
      })
      response.on('error', done)
      response.on('close', done)
    })
    request.end(body)
  })
}
