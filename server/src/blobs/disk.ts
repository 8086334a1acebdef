import { createHash } from 'node:crypto'
import { type FileHandle, open, opendir, readdir, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { World } from '@ichido/sdk/world'
import { type FileModes, PRIVATE } from '../core/node/file-modes.ts'
import { isDiskFull, isMissing, StoreFull } from '../core/node/store-errors.ts'
import { makeFolder, openNew } from './modes.ts'
import {
  BlobMissing,
  type BlobName,
  type Blobs,
  type Received,
  type Receiving,
  type Sealed,
  SHARDS,
  TooManyParts,
  UploadGone,
} from './port.ts'

interface DiskOptions {
  /** May be shared with other nodes. */
  folder: string
  world: Pick<World, 'now' | 'secret'>
  modes?: FileModes
}

const NAME_BYTES = 9
const PROBE_FILE = 'room.probe'
const ROOM_BYTES = 1024 * 1024

/**
 * Keeps uploads and blobs as files: `uploads/<upload>/<first byte>.<random>` and `blobs/<xx>/<sha256>.<blob>`. Each
 * request writes to a file of its own, so two requests for one upload, perhaps on two nodes, cannot damage each other's
 * bytes. A blob's name is used once, so removing a blob cannot remove a later copy of the same content.
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
        // An upload of one request was hashed while it arrived, and is one file already.
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

/** Reads until the end, a failure of the source, or a chunk that `take` refuses. An error of `take` is thrown. */
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

/** Joins several parts into one file. */
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

/** Removes a file that no longer fits on the disk, so that it does not keep the space that other uploads need. */
async function givingBack<T>(file: string, modes: FileModes, use: (handle: FileHandle) => Promise<T>): Promise<T> {
  return withNewFile(file, modes, use).catch(async (error: unknown) => {
    if (isDiskFull(error)) await rm(file, { force: true })
    return throwFull(error)
  })
}

/** Another request may have discarded the upload's folder meanwhile. */
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

/** A file's name is on disk only after its folder was synced. */
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

/** A part of an upload: `bytes` bytes of a file, after the first `skip` bytes, which an earlier part contains. */
interface Part {
  file: string
  skip: number
  bytes: number
}

/** Each request reads the list of parts. The largest artifact has 1,000 parts of 5 MiB. */
export const PARTS_MAX = 1_000
const OFFSET_DIGITS = 16

function partName(fromByte: number): string {
  return String(fromByte).padStart(OFFSET_DIGITS, '0')
}

/**
 * Finds the parts that cover the first bytes of an upload without a gap. A part may still grow, so parts may overlap. A
 * byte is taken from the earliest part that has it, and no byte beyond `bytesMax` is taken.
 */
async function readParts(folder: string, bytesMax = Number.POSITIVE_INFINITY): Promise<Part[]> {
  const names = (await readdir(folder).catch(none)).filter((name) => /^\d{16}\./.test(name))
  if (names.length >= PARTS_MAX) throw new TooManyParts(`More than ${PARTS_MAX} parts; send larger ones`)
  const sizes = await Promise.all(names.map((name) => sizeOf(join(folder, name))))
  const found = names.map((name, i) => {
    const from = Number(name.slice(0, OFFSET_DIGITS))
    return { file: join(folder, name), from, end: from + (sizes[i] ?? 0) }
  })
  found.sort((a, b) => a.from - b.from || b.end - a.end)

  const parts: Part[] = []
  let at = 0
  for (const { file, from, end } of found) {
    if (from > at) break
    const until = Math.min(end, bytesMax)
    if (until > at) parts.push({ file, skip: at - from, bytes: until - at })
    at = Math.max(at, until)
  }
  return parts
}

async function sizeOf(file: string): Promise<number> {
  return stat(file).then(
    (facts) => facts.size,
    () => 0,
  )
}
