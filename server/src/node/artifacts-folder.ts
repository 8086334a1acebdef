import { mkdir, rmdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { World } from '@ichido/sdk/world'
import { openDisk, syncFolder } from '../blobs/disk.ts'
import { makeFolder } from '../blobs/modes.ts'
import type { Blobs } from '../blobs/port.ts'
import { type FileModes, modesInside, PRIVATE } from '../core/node/file-modes.ts'
import { openLogArchive } from '../log-archive/disk.ts'
import type { LogArchive } from '../log-archive/port.ts'
import type { Limits } from '../services/deps.ts'
import { artifactsFolder, hasBlobs } from '../store/artifacts/tidy-artifacts.ts'
import { hasArchivedLogs } from '../store/logs/archive-logs.ts'
import type { Store } from '../store/port.ts'

export interface ArtifactOptions {
  /** Shared by all nodes. Unset: beside SQLite's file; with PostgreSQL there are no artifacts then. */
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

/** What a node needs to keep artifacts and archived logs: nothing, where they are off. */
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
    // Nobody asked for it by name, so it need not keep the node from starting.
    onTrouble('artifacts', error)
    return { deps: {}, limits }
  }
}

/** The folder is not the one that the store's files are in, or cannot be used. */
export class ArtifactsElsewhere extends Error {
  override readonly name = 'ArtifactsElsewhere'
}

/**
 * Opens the folder that holds the store's artifacts and archived logs. The store knows it by an id, the name of a folder inside of it, which
 * the first node makes: a node that does not find it looks at another folder, or at a share that is not mounted, and would
 * not find what the other nodes store.
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
    // One process alone works on SQLite: while nothing is kept, any folder will do.
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

/** Made before it is proposed, so that whoever reads the id finds the folder. */
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
