import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream, fstatSync, readdirSync } from 'node:fs'
import { basename, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { ERRORS, type ErrorCode, IchidoError, type LeaseShape } from '../../../protocol/index.ts'
import { sleep, type World } from '../../../world.ts'
import { isPassing } from '../../loop/failure.ts'
import { FileRefused, nameOf, openRegular, parseJson, requireFolder } from './files.ts'

interface ArtifactsOptions {
  url: string
  token: () => string
  world: World
}

/** The files that a job is given, and the files that it makes. */
export interface Artifacts {
  /** Downloads the artifacts of the lease into the folder, and checks their hashes. */
  fetchAll(lease: LeaseShape, folder: string, signal: AbortSignal): Promise<void>
  /**
   * Sends the files in the folder, through any outage, until the signal aborts. Subfolders and hidden files are not sent. Throws
   * `NotTaken` if the control plane accepts no files, and `FileRefused`, after all others were sent, if it refuses a file or
   * the file is not the run's own.
   */
  sendAll(lease: LeaseShape, folder: string, signal: AbortSignal): Promise<void>
}

/** The control plane answers but cannot store files, so the lease is not kept for them. */
export class NotTaken extends Error {
  override readonly name = 'NotTaken'
}

/** Few, because another worker can begin the run instead. */
const FETCH_TRIES_MAX = 6
/** The maximum number of temporary errors that the control plane itself answers with. */
const ANSWERS_MAX = 6
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
      throw new IchidoError('UNAVAILABLE', `The download of ${artifact.name} broke off: ${String(error)}`)
    })
    if (hash.digest('hex') !== artifact.sha256) {
      throw new IchidoError('UNAVAILABLE', `${artifact.name} was damaged on the way: its SHA-256 does not match`)
    }
  }

  async function sendOne(lease: LeaseShape, path: string, signal: AbortSignal) {
    const fd = opened(path)
    // Opened once, so that the bytes that are sent are those that were checked and hashed.
    const file = createReadStream(path, { fd, start: 0 })
    try {
      const query = new URLSearchParams({
        name: basename(path),
        lease_id: lease.lease_id,
        sha256: await hashOf(fd),
        size_bytes: String(fstatSync(fd).size),
      })
      const init = {
        method: 'POST',
        headers: { ...headers(), 'content-type': TYPE },
        body: Readable.toWeb(file) as ReadableStream,
        // fetch requires it for a stream.
        duplex: 'half',
        signal,
      }
      const response = await reach(`${url}/v1/artifacts?${query}`, init)
      await response.body?.cancel()
    } finally {
      // If no server takes the call, the file would stay open.
      file.destroy()
    }
  }

  async function insist(signal: AbortSignal, triesMax: number, act: () => Promise<void>): Promise<void> {
    let answers = 0
    for (let tries = 1; ; tries++) {
      try {
        return await act()
      } catch (error) {
        if (signal.aborted || tries >= triesMax || !isPassing(error)) throw error
        if (error instanceof IchidoError && error.details.answered === true) answers++
        if (answers >= ANSWERS_MAX) throw new NotTaken(`The control plane accepts no files: ${String(error)}`)
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
      requireFolder(folder)
      const entries = readdirSync(folder, { withFileTypes: true })
      const files = entries.filter((entry) => !entry.isDirectory() && !entry.name.startsWith('.'))
      // A refused file does not prevent the others, which may be hours of work.
      const refusals: FileRefused[] = []
      for (const { name } of files) {
        await insist(signal, Infinity, () => sendOne(lease, join(folder, name), signal)).catch((error: unknown) => {
          if (error instanceof FileRefused) refusals.push(error)
          else if (!isRefused(error)) throw error
          else refusals.push(new FileRefused(`outputs/${name} was refused: ${error.message}`, { cause: error }))
        })
      }
      const [first] = refusals
      if (first !== undefined) throw first
    },
  }
}

/** Returns a successful response; throws an error whose code says whether a retry may help. */
async function reach(url: string, init: RequestInit): Promise<Response> {
  const response = await fetch(url, init).catch((error: unknown) => {
    throw new IchidoError('UNAVAILABLE', `The control plane cannot be reached: ${String(error)}`)
  })
  if (response.ok) return response
  throw refusal(response.status, await response.text())
}

/** True if the file's name or size was refused; damage on the way is another error. */
function isRefused(error: unknown): error is IchidoError {
  if (!(error instanceof IchidoError)) return false
  return error.code === 'PAYLOAD_TOO_LARGE' || (error.code === 'INVALID_PAYLOAD' && error.details.field === 'name')
}

function refusal(status: number, text: string): IchidoError {
  const why = `${status}: ${text.slice(0, 500)}`
  const { code, message, details } = errorIn(text)
  if (status === 401) return new IchidoError('UNAUTHENTICATED', why)
  if (status < 500 && status !== 429 && status !== 408) {
    return code !== null && Object.hasOwn(ERRORS, code)
      ? new IchidoError(code as ErrorCode, message, details)
      : new IchidoError('FORBIDDEN', why)
  }
  // While the store is away or full, no other call succeeds either.
  const isAway = code === 'UNAVAILABLE' || (code === 'STORE_FULL' && details.place === 'store')
  const answered = status >= 500 && code !== null && !isAway
  return new IchidoError('UNAVAILABLE', why, { answered })
}

/** Parses an error body; the code is null if the answer comes from a proxy. */
function errorIn(text: string): { code: string | null; message: string; details: Record<string, unknown> } {
  const body = parseJson(text) as { error?: Record<'code' | 'message' | 'details', unknown> } | null | undefined
  const { code, message, details } = (typeof body === 'object' && body?.error) || {}
  return {
    code: typeof code === 'string' ? code : null,
    message: String(message ?? ''),
    details: { ...Object(details) },
  }
}

function opened(path: string): number {
  const fd = openRegular(path)
  if (fd === null) throw new Error(`${nameOf(path)} is gone`)
  return fd
}

async function hashOf(fd: number): Promise<string> {
  const hash = createHash('sha256')
  for await (const part of createReadStream('', { fd, start: 0, autoClose: false })) hash.update(part as Buffer)
  return hash.digest('hex')
}
