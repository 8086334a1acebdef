import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { mkdir, rmdir, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import type { World } from '@ichido/sdk/world'
import { openDisk, syncFolder } from '../blobs/disk.ts'
import { makeFolder } from '../blobs/modes.ts'
import type { Blobs } from '../blobs/port.ts'
import { type FileModes, modesInside, PRIVATE } from '../core/node/file-modes.ts'
import { AdvisedError } from '../core/node/store-errors.ts'
import { openLogArchive } from '../log-archive/disk.ts'
import type { LogArchive } from '../log-archive/port.ts'
import type { Backups, Disks, Limits } from '../services/deps.ts'
import { artifactsFolder, hasBlobs } from '../store/artifacts/tidy-artifacts.ts'
import type { BackupReport } from '../store/backup/backup-file.ts'
import type { BackupOrder } from '../store/backup/backup-thread.ts'
import { DATABASE_FILE } from '../store/engines/sqlite/sqlite.ts'
import { hasArchivedLogs } from '../store/logs/archive-logs.ts'
import type { Store } from '../store/port.ts'

export interface ArtifactOptions {
  /** All nodes share this folder. Unset: it is beside SQLite's file, and with PostgreSQL there are no artifacts. */
  folder?: string | undefined
  bytesMax?: number | undefined
}

interface Surroundings {
  storage: object | { dataDir: string }
  artifacts?: ArtifactOptions | undefined
  world: World
  onTrouble(where: string, error: unknown): void
}

interface KeptFiles {
  blobs: Blobs
  logArchive: LogArchive
}

/** Opens the folders of artifacts and archived logs; returns nothing if they are off. */
export async function openFiles(
  { storage, artifacts = {}, world, onTrouble }: Surroundings,
  store: Store,
): Promise<{ deps: Partial<KeptFiles>; limits: Partial<Limits> }> {
  const { folder, bytesMax } = artifacts
  const limits = bytesMax === undefined ? {} : { artifactBytesMax: bytesMax }
  if (folder !== undefined) return { deps: await openFolder(store, folder, world), limits }
  if (!('dataDir' in storage)) return { deps: {}, limits }
  try {
    return { deps: await openFolder(store, join(storage.dataDir, 'artifacts'), world), limits }
  } catch (error) {
    // The folder is only a default, so the node starts without it.
    onTrouble('artifacts', error)
    return { deps: {}, limits }
  }
}

/** The folder does not contain the store's files, or cannot be used. */
class ArtifactsElsewhere extends AdvisedError {
  override readonly name = 'ArtifactsElsewhere'
}

/**
 * Opens the folder with the store's artifacts and archived logs. The store knows it by an id: the name of a subfolder
 * that the first node creates. A node that does not find the subfolder has another folder or an unmounted share, and
 * would not find the files of the other nodes.
 */
async function openFolder(store: Store, folder: string, world: World): Promise<KeptFiles> {
  await mkdir(folder, { recursive: true, mode: PRIVATE.folder }).catch((error: Error) => {
    throw new ArtifactsElsewhere(`${folder} cannot hold artifacts: ${error.message}. Set ARTIFACTS_DIR to a folder.`, {
      cause: error,
    })
  })
  const modes = modesInside((await stat(folder)).mode)
  const known = await store.read(artifactsFolder(null))
  const id = known ?? (await propose(store, folder, world.uuid(), modes))
  const inside = join(folder, id)
  if (!(await isFolder(inside))) {
    // SQLite has one process: while it stores nothing, any folder will do.
    if (store.engine !== 'sqlite' || (await keepsAnything(store))) throw new ArtifactsElsewhere(advice(folder, id))
    await make(inside, folder, modes)
  }
  return {
    blobs: await openDisk({ folder: inside, world, modes }),
    logArchive: await openLogArchive({ folder: inside, world, modes }),
  }
}

async function keepsAnything(store: Store): Promise<boolean> {
  return (await store.read(hasBlobs())) || (await store.read(hasArchivedLogs()))
}

/** The folder is created first, so that every node that reads the id finds it. */
async function propose(store: Store, folder: string, proposed: string, modes: FileModes): Promise<string> {
  const inside = join(folder, proposed)
  await make(inside, folder, modes)
  const id = (await store.write(artifactsFolder(proposed))) ?? proposed
  if (id !== proposed) await rmdir(inside)
  return id
}

async function make(inside: string, folder: string, modes: FileModes): Promise<void> {
  await makeFolder(inside, modes)
  await syncFolder(folder)
}

async function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (facts) => facts.isDirectory(),
    () => false,
  )
}

function advice(folder: string, id: string): string {
  return (
    `${folder} does not hold the artifacts of this database: there is no folder ${id} in it. All nodes need the same ` +
    'folder: set ARTIFACTS_DIR to the shared folder that contains it, or move that folder here.'
  )
}

export const BACKUPS_FOLDER = 'backups'
const NAME = /^ichido-(\d{4}-\d\d-\d\dT)(\d\d)-(\d\d)-(\d\d\.\d{3}Z)\.backup$/
const PARTIAL = /\.backup\.partial$/

/** The thread is JavaScript in the package, and TypeScript in the repository. */
const THREAD = new URL(`../store/backup/backup-thread${import.meta.url.slice(-3)}`, import.meta.url)

/** Keeps backups of an embedded store in a folder beside its database. A backup's name contains its time. */
export function openBackups({ storage, world }: { storage: object; world: Pick<World, 'now'> }): {
  backups?: Backups & { close(): Promise<unknown> }
} {
  if (!('dataDir' in storage) || typeof storage.dataDir !== 'string') return {}
  const { dataDir } = storage
  const folder = join(dataDir, BACKUPS_FOLDER)
  let thread: Worker | null = null

  function make(): Promise<BackupReport & { name: string }> {
    const nowMs = world.now()
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    // Partial files are of a process that died: no other process uses this folder.
    for (const name of readdirSync(folder)) if (PARTIAL.test(name)) rmSync(join(folder, name))
    const name = `ichido-${new Date(nowMs).toISOString().replaceAll(':', '-')}.backup`
    const file = join(folder, name)
    const workerData: BackupOrder = {
      database: join(dataDir, DATABASE_FILE),
      temporary: `${file}.partial`,
      file,
      nowMs,
    }
    const running = new Worker(THREAD, { workerData, execArgv: process.execArgv })
    thread = running
    return new Promise((resolve, reject) => {
      running.once('message', (report: BackupReport) => resolve({ name, ...report }))
      running.once('error', reject)
      running.once('exit', () => {
        thread = null
        reject(new Error('The backup was stopped, because the server stops'))
      })
    })
  }

  return {
    backups: {
      make,
      list() {
        if (!existsSync(folder)) return []
        const names = readdirSync(folder).sort()
        return names.flatMap((name) => {
          const [, day, hour, minute, second] = NAME.exec(name) ?? []
          return day === undefined ? [] : [{ name, createdAtMs: Date.parse(`${day}${hour}:${minute}:${second}`) }]
        })
      },
      remove: (name) => rmSync(join(folder, name), { force: true }),
      close: async () => thread?.terminate(),
    },
  }
}

interface Folders {
  storage: object | { dataDir: string }
  artifacts?: { folder?: string | undefined } | undefined
}

/** The disks of the folders that a node writes to. With PostgreSQL and without artifacts there are none. */
export function disksOf({ storage, artifacts = {} }: Folders): Disks {
  const data = 'dataDir' in storage ? [storage.dataDir] : []
  const { folder } = artifacts
  const folders = folder === undefined || folder === join(data[0] ?? '', 'artifacts') ? data : [...data, folder]
  return () => Promise.all(folders.map(async (folder) => ({ folder, freeRatio: await freeRatio(folder) })))
}

/** Computed like df: the blocks reserved for root are neither used nor free. */
async function freeRatio(folder: string): Promise<number> {
  const { blocks, bfree, bavail } = await statfs(folder)
  const usable = blocks - bfree + bavail
  return usable === 0 ? 1 : bavail / usable
}
