import * as realFiles from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip, createGzip } from 'node:zlib'
import type { World } from '@ichido/sdk/world'
import { z } from 'zod'
import { makeFolder, openNew } from '../blobs/modes.ts'
import { type FileModes, PRIVATE } from '../core/node/file-modes.ts'
import { isDiskFull, isMissing, StoreFull } from '../core/node/store-errors.ts'
import { LOG_STREAMS } from '../core/run/run-state.ts'
import { type ArchivedChunk, type LogArchive, type LogFile, LogUnreadable, logFileOf, logRefOf } from './port.ts'

/** The functions of the file system that are used; a test makes each of them fail. */
export type Files = Pick<typeof realFiles, 'mkdir' | 'chmod' | 'open' | 'rename' | 'rm' | 'readdir' | 'stat'>

interface DiskArchiveOptions {
  /** May be shared with other nodes. */
  folder: string
  world: Pick<World, 'now'>
  modes?: FileModes
  files?: Files
}

const PARTIAL = '.partial'
const NEWLINE = 0x0a
const BEFORE_N = '{"n":'

/** Each chunk is a line, so `zcat` and `jq -r .text` can read it. */
const line = z.strictObject({
  n: z.int(),
  stream: z.enum(LOG_STREAMS),
  created_at: z.int(),
  text: z.string(),
})

/** Keeps logs as compressed files, one for each run: `logs/<xx>/<run>.<file>.jsonl.gz`. */
export async function openLogArchive(options: DiskArchiveOptions): Promise<LogArchive> {
  const { folder, world, modes = PRIVATE, files = realFiles } = options
  const pathOf = (file: LogFile) => join(folder, logRefOf(file))
  /** Folders that were synced. A process that died may have created a folder without syncing it. */
  const synced = new Set<string>()
  await makeSynced(join(folder, 'logs'))

  async function syncFolder(path: string): Promise<void> {
    const handle = await files.open(path, 'r')
    try {
      await handle.sync()
    } finally {
      await handle.close()
    }
  }

  async function makeSynced(path: string): Promise<void> {
    if (synced.has(path)) return
    await makeFolder(path, modes, files)
    await syncFolder(dirname(path))
    synced.add(path)
  }

  async function fill(path: string, chunks: AsyncIterable<ArchivedChunk>): Promise<number> {
    const handle = await openNew(path, modes, files)
    try {
      await pipeline(Readable.from(written(chunks)), createGzip(), (parts) => handle.writeFile(parts))
      await handle.sync()
      return (await handle.stat()).size
    } finally {
      await handle.close()
    }
  }

  return {
    async write(file, chunks) {
      const path = pathOf(file)
      try {
        await makeSynced(dirname(path))
        const bytes = await fill(path + PARTIAL, chunks)
        await files.rename(path + PARTIAL, path)
        await syncFolder(dirname(path))
        return bytes
      } catch (error) {
        // A full disk must not get fuller with every try.
        await files.rm(path + PARTIAL, { force: true }).catch(() => {})
        throw isDiskFull(error) ? new StoreFull('artifacts', 'that holds archived logs (ARTIFACTS_DIR)', error) : error
      }
    },

    async *read(file, afterN, lastN) {
      const source = (await openFile(files, pathOf(file), logRefOf(file))).createReadStream()
      const gunzip = createGunzip()
      // Errors of both streams are thrown by the loop.
      const flowing = pipeline(source, gunzip).catch(() => {})
      let n = -1
      try {
        for await (const bytes of linesOf(gunzip)) {
          n = Number.parseInt(bytes.toString('latin1', BEFORE_N.length, BEFORE_N.length + 16), 10)
          if (n <= afterN) continue
          const { created_at, ...chunk } = line.parse(JSON.parse(bytes.toString()))
          yield { ...chunk, createdAtMs: created_at }
        }
      } catch (error) {
        throw new LogUnreadable(`The file ${logRefOf(file)} is damaged`, { cause: error })
      } finally {
        source.destroy()
        gunzip.destroy()
        await flowing
      }
      if (n !== lastN) throw new LogUnreadable(`The file ${logRefOf(file)} is incomplete`)
    },

    async remove(file) {
      for (const path of [pathOf(file), pathOf(file) + PARTIAL]) await files.rm(path, { force: true })
    },

    async list(shard) {
      const xx = shard.toString(16).padStart(2, '0')
      const names = await files.readdir(join(folder, 'logs', xx)).catch(none)
      return names.flatMap((name) => logFileOf(`logs/${xx}/${name.replace(PARTIAL, '')}`) ?? [])
    },

    async ageMs(file) {
      const path = pathOf(file)
      const facts = await files.stat(path).catch(() => files.stat(path + PARTIAL).catch(none))
      // Another process removes or renames the file right now.
      if (!('mtimeMs' in facts)) return 0
      return world.now() - Math.max(facts.mtimeMs, facts.ctimeMs)
    },
  }
}

async function* written(chunks: AsyncIterable<ArchivedChunk>): AsyncGenerator<string> {
  for await (const { n, stream, createdAtMs, text } of chunks) {
    yield `${JSON.stringify({ n, stream, created_at: createdAtMs, text })}\n`
  }
}

async function openFile(files: Files, path: string, ref: string): Promise<realFiles.FileHandle> {
  try {
    return await files.open(path, 'r')
  } catch (error) {
    throw new LogUnreadable(isMissing(error) ? `The file ${ref} is missing` : `The file ${ref} cannot be opened`, {
      cause: error,
    })
  }
}

/** JSON escapes line feeds. Other separators, like U+2028, do not end a line. */
async function* linesOf(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let open: Buffer[] = []
  for await (const part of source) {
    let from = 0
    for (let at = part.indexOf(NEWLINE); at >= 0; at = part.indexOf(NEWLINE, from)) {
      yield Buffer.concat([...open, part.subarray(from, at)])
      open = []
      from = at + 1
    }
    if (from < part.length) open.push(part.subarray(from))
  }
}

function none(error: unknown): never[] {
  if (isMissing(error)) return []
  throw error
}
