import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream, readdirSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { sleep, type World } from '../../world.ts'
import { isPassing } from '../loop.ts'

export interface ArtifactsOptions {
  url: string
  token: () => string
  world: World
}

/** The files of a job: what it was given, and what it makes. */
export interface Artifacts {
  /** Into the folder, under their own names, checked against their hashes. */
  fetchAll(lease: LeaseShape, folder: string, signal: AbortSignal): Promise<void>
  /** The files in the folder itself, through any outage, until the signal aborts; folders in it are not sent. */
  sendAll(lease: LeaseShape, folder: string, signal: AbortSignal): Promise<void>
}

/** Of what a run is to begin with: it can as well begin elsewhere. */
const FETCH_TRIES_MAX = 6
const RETRY_FIRST_MS = 1_000
const RETRY_MAX_MS = 30_000
const TYPE = 'application/octet-stream'

export function httpArtifacts({ url, token, world }: ArtifactsOptions): Artifacts {
  const headers = () => ({ authorization: `Bearer ${token()}` })

  async function fetchOne(artifact: LeaseShape['artifacts'][number], folder: string, signal: AbortSignal) {
    const response = await reach(`${url}/v1/artifacts/${artifact.artifact_id}`, { headers: headers(), signal })
    const hash = createHash('sha256')
    const body = Readable.fromWeb(response.body as import('node:stream/web').ReadableStream)
    body.on('data', (part: Buffer) => hash.update(part))
    await pipeline(body, createWriteStream(join(folder, basename(artifact.name)))).catch((error: unknown) => {
      throw new IchidoError('UNAVAILABLE', `${artifact.name} broke off: ${String(error)}`)
    })
    if (hash.digest('hex') !== artifact.sha256) {
      throw new IchidoError('UNAVAILABLE', `${artifact.name} did not arrive as it was sent`)
    }
  }

  async function sendOne(lease: LeaseShape, path: string, signal: AbortSignal) {
    const query = new URLSearchParams({
      name: basename(path),
      lease_id: lease.lease_id,
      sha256: await hashOf(path),
      size_bytes: String(statSync(path).size),
    })
    const init = {
      method: 'POST',
      headers: { ...headers(), 'content-type': TYPE },
      body: Readable.toWeb(createReadStream(path)) as ReadableStream,
      // What fetch wants to hear when it is given a stream.
      duplex: 'half',
      signal,
    }
    const response = await reach(`${url}/v1/artifacts?${query}`, init)
    await response.body?.cancel()
  }

  async function insist(signal: AbortSignal, triesMax: number, act: () => Promise<void>): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        return await act()
      } catch (error) {
        if (signal.aborted || tries >= triesMax || !isPassing(error)) throw error
        const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** (tries - 1))
        await sleep(world, ms * (0.5 + world.random() / 2), signal)
      }
    }
  }

  return {
    async fetchAll(lease, folder, signal) {
      for (const artifact of lease.artifacts) {
        await insist(signal, FETCH_TRIES_MAX, () => fetchOne(artifact, folder, signal))
      }
    },
    async sendAll(lease, folder, signal) {
      const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile())
      for (const { name } of files) await insist(signal, Infinity, () => sendOne(lease, join(folder, name), signal))
    },
  }
}

/** Answers with what went well; all else is thrown, told apart by whether it may pass. */
async function reach(url: string, init: RequestInit): Promise<Response> {
  const response = await fetch(url, init).catch((error: unknown) => {
    throw new IchidoError('UNAVAILABLE', `The control plane is out of reach: ${String(error)}`)
  })
  if (response.ok) return response
  const text = await response.text()
  const why = `${response.status}: ${text.slice(0, 500)}`
  if (response.status >= 500 || response.status === 429) throw new IchidoError('UNAVAILABLE', why)
  throw new IchidoError('INVALID_PAYLOAD', why)
}

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const part of createReadStream(path)) hash.update(part as Buffer)
  return hash.digest('hex')
}
