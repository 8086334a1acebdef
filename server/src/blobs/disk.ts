import { createHash } from 'node:crypto'
import { type FileHandle, open, opendir, readdir, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { World } from '@ichido/sdk/world'
import { type FileModes, PRIVATE } from '../core/node/file-modes.ts'
import { isDiskFull, StoreFull } from '../core/node/store-full.ts'
import { makeFolder, openNew } from './modes.ts'
import { type Part, partName, readParts } from './parts.ts'
import {
  BlobMissing,
  type BlobName,
  type Blobs,
  type Received,
  type Receiving,
  type Sealed,
  SHARDS,
  UploadGone,
} from './port.ts'

export interface DiskOptions {
  /** May be shared with other nodes. */
  folder: string
  world: Pick<World, 'now' | 'secret'>
  modes?: FileModes
}

const NAME_BYTES = 9
const PROBE_FILE = 'room.probe'
const ROOM_BYTES = 1024 * 1024

/**
 * Uploads and blobs as files: `uploads/<upload>/<first byte>.<random>` and `blobs/<xx>/<sha256>.<blob>`. A request writes
 * to a file that nobody else ever writes to, so that two of them at one upload, on two nodes perhaps, cannot spoil the
 * bytes of either; and a blob's name is used once, so that removing it cannot meet whoever brings the same content again.
 */
export async function openDisk({ folder, world, modes = PRIVATE }: DiskOptions): Promise<Blobs> {
  const uploads = join(folder, 'uploads')
  const blobs = join(folder, 'blobs')
  await makeFolder(uploads, modes)
  await makeFolder(blobs, modes)
  await syncFolder(folder)

  const uploadFolder = (uploadId: string) => join(uploads, uploadId)
  const blobFile = ({ sha256, blobId }: BlobName) => join(blobs, sha256.slice(0, 2), `${sha256}.${blobId}`)
  const newFile = (uploadId: string, name: string) =>
    join(uploadFolder(uploadId), `${name}.${world.secret(NAME_BYTES)}`)

  async function receive(uploadId: string, fromByte: number): Promise<Receiving> {
    const before = fromByte === 0 ? [] : await readParts(uploadFolder(uploadId), fromByte)
    if (fromByte === 0) await discard(uploadId)
    await makeFolder(uploadFolder(uploadId), modes).catch(throwFull)
    const file = newFile(uploadId, partName(fromByte))
    const hash = createHash('sha256')
    let written = 0

    return {
      take(source, bytesMax, onBytes) {
        return givingBack(file, modes, async (handle) => {
          const end = await pour(source, async (chunk) => {
            if (fromByte + written + chunk.length > bytesMax) return false
            await writeAll(handle, chunk)
            hash.update(chunk)
            written += chunk.length
            await onBytes()
            return true
          })
          await handle.datasync()
          return { end, bytes: fromByte + written }
        })
      },
      async seal(): Promise<Sealed> {
        // Sent in one go, it was hashed on the way and is a file already.
        if (fromByte === 0) return { sha256: hash.digest('hex'), sizeBytes: written, file }
        return joinParts([...before, { file, skip: 0, bytes: written }], newFile(uploadId, 'sealed'), modes)
      },
    }
  }

  async function discard(uploadId: string): Promise<void> {
    await rm(uploadFolder(uploadId), { recursive: true, force: true })
  }

  return {
    received: async (uploadId) => (await readParts(uploadFolder(uploadId))).reduce((sum, { bytes }) => sum + bytes, 0),
    receive,
    async place({ sha256, file }, blobId) {
      const target = blobFile({ sha256, blobId })
      const made = await makeFolder(dirname(target), modes).catch(throwFull)
      if (made) await syncFolder(blobs)
      await rename(file, target).catch(throwGone).catch(throwFull)
      await syncFolder(dirname(target))
    },
    discard,
    async read(name, range) {
      const handle = await open(blobFile(name), 'r').catch((error: unknown) => {
        throw isMissing(error) ? new BlobMissing(`The bytes of ${name.sha256} are gone from ${folder}`) : error
      })
      return handle.createReadStream(range === null ? {} : { start: range.first, end: range.last })
    },
    remove: (name) => rm(blobFile(name), { force: true }),
    async requireRoom() {
      const probe = join(folder, PROBE_FILE)
      try {
        await writeFile(probe, Buffer.alloc(ROOM_BYTES), { flush: true }).catch(throwFull)
      } finally {
        await rm(probe, { force: true })
      }
    },
    async *uploads(batchMax) {
      let batch: string[] = []
      for await (const { name } of await opendir(uploads)) {
        batch.push(name)
        if (batch.length < batchMax) continue
        yield batch
        batch = []
      }
      if (batch.length > 0) yield batch
    },
    async oldBlobs(shard, ageMs) {
      const place = join(blobs, (shard % SHARDS).toString(16).padStart(2, '0'))
      const found: BlobName[] = []
      for (const file of await readdir(place).catch(none)) {
        const [sha256, blobId] = file.split('.')
        const facts = await stat(join(place, file)).catch(() => null)
        if (sha256 === undefined || blobId === undefined || facts === null) continue
        if (world.now() - Math.max(facts.mtimeMs, facts.ctimeMs) >= ageMs) found.push({ sha256, blobId })
      }
      return found
    },
  }
}

/** Reads on until the end, a failure of the source, or a chunk that is not taken. What the taker throws goes on. */
async function pour(
  source: AsyncIterable<Uint8Array>,
  take: (chunk: Uint8Array) => Promise<boolean>,
): Promise<Received['end']> {
  const chunks = source[Symbol.asyncIterator]()
  for (;;) {
    let next: IteratorResult<Uint8Array>
    try {
      next = await chunks.next()
    } catch {
      return 'cut'
    }
    if (next.done) return 'whole'
    if (!(await take(next.value))) return 'over'
  }
}

async function writeAll(handle: FileHandle, chunk: Uint8Array): Promise<void> {
  for (let at = 0; at < chunk.length; ) at += (await handle.write(chunk, at)).bytesWritten
}

/** Makes one file of several parts. */
async function joinParts(parts: readonly Part[], file: string, modes: FileModes): Promise<Sealed> {
  const hash = createHash('sha256')
  let sizeBytes = 0
  await givingBack(file, modes, async (target) => {
    for (const { file: part, skip, bytes } of parts) {
      if (bytes === 0) continue
      const handle = await open(part, 'r').catch(throwGone)
      for await (const chunk of handle.createReadStream({ start: skip, end: skip + bytes - 1 })) {
        await writeAll(target, chunk)
        hash.update(chunk)
        sizeBytes += chunk.length
      }
    }
    await target.datasync()
  })
  return { sha256: hash.digest('hex'), sizeBytes, file }
}

/** A file that no longer fits is removed: kept, it would hold the room that others need. */
async function givingBack<T>(file: string, modes: FileModes, use: (handle: FileHandle) => Promise<T>): Promise<T> {
  return withNewFile(file, modes, use).catch(async (error: unknown) => {
    if (isDiskFull(error)) await rm(file, { force: true })
    return throwFull(error)
  })
}

/** In the folder of an upload, which another request may have discarded meanwhile. */
async function withNewFile<T>(file: string, modes: FileModes, use: (handle: FileHandle) => Promise<T>): Promise<T> {
  return useAndClose(await openNew(file, modes).catch(throwGone), use)
}

async function useAndClose<T>(handle: FileHandle, use: (handle: FileHandle) => Promise<T>): Promise<T> {
  try {
    return await use(handle)
  } finally {
    await handle.close()
  }
}

/** A name is on disk when its folder is. */
export async function syncFolder(folder: string): Promise<void> {
  await useAndClose(await open(folder, 'r'), (handle) => handle.sync())
}

function none(error: unknown): never[] {
  if (isMissing(error)) return []
  throw error
}

function throwFull(error: unknown): never {
  throw isDiskFull(error) ? new StoreFull('artifacts', 'that holds the artifacts (ARTIFACTS_DIR)', error) : error
}

function throwGone(error: unknown): never {
  throw isMissing(error) ? new UploadGone() : error
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ENOENT'
}
