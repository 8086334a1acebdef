import { lookup } from 'node:dns/promises'
import { type ClientRequest, type IncomingMessage, request as overHttp } from 'node:http'
import { request as overHttps } from 'node:https'
import { isIP } from 'node:net'
import type { Readable } from 'node:stream'
import { createBrotliDecompress, createGunzip, createInflate } from 'node:zlib'
import { Fatal } from '@ichido/sdk'
import { isPublic } from './addresses.ts'

/** Only this much of a page is read, because text is at the beginning. */
const BYTES_MAX = 2 * 1024 * 1024
const REDIRECTS_MAX = 5
const TIMEOUT_MS = 15_000
const WEB_PORTS = [80, 443]
/** Lower ports are for mail, shells and other services that a page request must not reach. */
const FIRST_FREE_PORT = 1024
const AGENT = 'IchidoBookmarks/1.0 (reads a page that somebody saved)'

export interface FetchedPage {
  /** The address after all redirects. */
  url: string
  contentType: string
  body: Buffer
}

/** The network access for pages; tests replace it. */
export interface Network {
  /** All addresses of a name. */
  resolve(hostname: string): Promise<string[]>
  /** Whether a connection to this address is allowed. */
  allows(address: string): boolean
}

export const internet: Network = {
  resolve: async (hostname) => (await lookup(hostname, { all: true })).map(({ address }) => address),
  allows: isPublic,
}

/** A temporary failure. Its name is the error code. */
export class Unreachable extends Error {
  override readonly name: 'PAGE_UNREACHABLE' | 'PAGE_TIMEOUT' | 'PAGE_UNAVAILABLE'

  constructor(name: Unreachable['name'], message: string) {
    super(message)
    this.name = name
  }
}

/**
 * Fetches a page that any user may have named. Every hop is resolved once, all of its addresses are checked, and the
 * connection goes to a checked address: a name that resolves differently later (DNS rebinding) is not resolved again.
 */
export async function fetchPage(address: string, network: Network, signal: AbortSignal): Promise<FetchedPage> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const over = AbortSignal.any([signal, timeout])
  try {
    return await followFrom(new URL(address), network, over)
  } catch (error) {
    signal.throwIfAborted()
    if (timeout.aborted) throw new Unreachable('PAGE_TIMEOUT', `The page took longer than ${TIMEOUT_MS / 1000} s`)
    if (error instanceof Fatal || error instanceof Unreachable) throw error
    throw new Unreachable('PAGE_UNREACHABLE', `The page cannot be reached: ${messageOf(error)}`)
  }
}

async function followFrom(first: URL, network: Network, signal: AbortSignal): Promise<FetchedPage> {
  let url = first
  for (let hops = 0; hops <= REDIRECTS_MAX; hops++) {
    signal.throwIfAborted()
    const response = await ask(url, await orAborted(pinned(url, network), signal), signal)
    const status = response.statusCode ?? 0
    const { location } = response.headers
    if (status >= 300 && status < 400 && location !== undefined) {
      response.destroy()
      url = new URL(location, url)
      continue
    }
    if (status !== 200) {
      response.destroy()
      throw refusal(status)
    }
    const contentType = response.headers['content-type'] ?? ''
    return { url: url.href, contentType, body: await bodyOf(response) }
  }
  throw new Fatal('TOO_MANY_REDIRECTS', `The page redirects more than ${REDIRECTS_MAX} times`)
}

/** A DNS lookup cannot be canceled, but its caller need not wait for it. */
function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason)
    signal.addEventListener('abort', abort, { once: true })
    // This also handles an aborted signal: an unhandled rejection would end the process.
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort))
    if (signal.aborted) abort()
  })
}

/** The address to connect to. A name with any refused address is refused, because a connection might use that address. */
async function pinned(url: URL, network: Network): Promise<string> {
  if (url.protocol !== 'http:' && url.protocol !== 'https:') throw refuse(`${url.protocol} is not http: or https:`)
  if (url.username !== '' || url.password !== '') throw refuse('it has a name or a password in it')
  const port = Number(url.port)
  if (port !== 0 && !WEB_PORTS.includes(port) && port < FIRST_FREE_PORT) throw refuse(`port ${port} is not for pages`)
  const hostname = url.hostname.replace(/^\[|\]$/g, '')
  const addresses = isIP(hostname) === 0 ? await network.resolve(hostname) : [hostname]
  const refused = addresses.find((address) => !network.allows(address))
  if (refused !== undefined) throw refuse(`${url.hostname} is not a public address`)
  const [address] = addresses
  if (address === undefined) throw new Unreachable('PAGE_UNREACHABLE', `${url.hostname} has no address`)
  return address
}

const refuse = (why: string) => new Fatal('ADDRESS_REFUSED', `The address is refused: ${why}`)

/** Like in HTTP clients, 5xx, 408 and 429 are temporary, and other errors are not. */
function refusal(status: number): Error {
  const message = `The page answered ${status}`
  if (status >= 500 || status === 408 || status === 429) return new Unreachable('PAGE_UNAVAILABLE', message)
  return new Fatal('PAGE_REFUSED', message)
}

function ask(url: URL, address: string, signal: AbortSignal): Promise<IncomingMessage> {
  const isNamed = isIP(url.hostname.replace(/^\[|\]$/g, '')) === 0
  const options = {
    host: address,
    port: url.port,
    path: url.pathname + url.search,
    headers: {
      host: url.host,
      'user-agent': AGENT,
      accept: 'text/html, application/xhtml+xml, text/plain;q=0.8',
      'accept-encoding': 'gzip, br',
    },
    // A kept-alive connection would be found by its name, not by the checked address.
    agent: false,
    signal,
    ...(isNamed ? { servername: url.hostname } : {}),
  }
  return new Promise((resolve, reject) => {
    const sent: ClientRequest = url.protocol === 'https:' ? overHttps(options, resolve) : overHttp(options, resolve)
    sent.on('error', reject)
    sent.end()
  })
}

async function bodyOf(response: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  // The limit applies after unpacking: a small answer can unpack to gigabytes.
  for await (const chunk of unpacked(response)) {
    chunks.push(chunk)
    bytes += chunk.length
    if (bytes >= BYTES_MAX) break
  }
  response.destroy()
  return Buffer.concat(chunks).subarray(0, BYTES_MAX)
}

function unpacked(response: IncomingMessage): Readable {
  const encoding = response.headers['content-encoding']?.trim().toLowerCase()
  const make = { gzip: createGunzip, 'x-gzip': createGunzip, deflate: createInflate, br: createBrotliDecompress }
  const found = Object.entries(make).find(([name]) => name === encoding)
  if (found === undefined) return response
  const unpack = found[1]()
  response.on('error', (error) => unpack.destroy(error))
  return response.pipe(unpack)
}

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error))
