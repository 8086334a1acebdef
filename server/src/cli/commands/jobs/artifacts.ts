import { createHash, randomUUID } from 'node:crypto'
import { type FileHandle, mkdir, open, rename, rm } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import type { ArtifactShape } from '@ichido/sdk/protocol'
import { artifactName } from '../../../contract/artifacts.ts'
import { innermost } from '../../../core/node/store-errors.ts'
import { type Connection, connect } from '../../connection/connect.ts'
import { jobIdOf } from '../../connection/job-id.ts'
import { Failure } from '../../output/exit.ts'
import { bytesOf, bytesText, printPage } from '../../output/print.ts'
import { LiveLine, out, outJson, say } from '../../output/terminal.ts'

interface ArtifactFlags {
  save?: string
  json?: boolean
}

export async function printArtifacts(given: string, { save, json }: ArtifactFlags): Promise<void> {
  const connection = connect()
  const jobId = await jobIdOf(connection, given)
  const artifacts = await connection.transport.artifacts(jobId)
  if (save !== undefined) return saveAll(connection, artifacts, resolve(save), json ?? false)
  const { runs } = json || artifacts.length === 0 ? { runs: [] } : await connection.transport.get(jobId)
  printPage({ data: artifacts }, json, 'The job has no artifacts.', {
    NAME: ({ name }) => name,
    BYTES: ({ size_bytes }) => size_bytes ?? '-',
    STATE: ({ state }) => state,
    RUN: ({ run_id }) => runs.find((run) => run.run_id === run_id)?.run_no ?? '-',
    'SHA-256': ({ sha256 }) => sha256 ?? '-',
  })
}

async function saveAll(connection: Connection, all: ArtifactShape[], folder: string, json: boolean): Promise<void> {
  const ready = all.filter(({ state }) => state === 'ready')
  const saved: (ArtifactShape & { path: string })[] = []
  await mkdir(folder, { recursive: true })
  for (const [artifact, name] of namesOf(ready)) {
    const path = join(folder, name)
    await saveOne(connection, artifact, path)
    saved.push({ ...artifact, path })
    if (!json) out(path)
  }
  if (json) outJson({ data: saved })
  for (const { name } of all.filter(({ state }) => state === 'awaited')) say(`${name} has not arrived yet.`)
  if (all.length === 0) say('The job has no artifacts.')
}

/**
 * The file name of each artifact. If two runs made artifacts of the same name, the newest has the name, and the others have
 * their id before it. A name that leads out of the folder is refused before anything is written.
 */
function namesOf(artifacts: readonly ArtifactShape[]): Map<ArtifactShape, string> {
  const names = new Map<ArtifactShape, string>()
  const taken = new Set<string>()
  for (const artifact of artifacts.toSorted((a, b) => b.created_at.localeCompare(a.created_at))) {
    const { name, artifact_id: id } = artifact
    const file = taken.has(oneFile(name)) ? `${id}-${name}` : name
    if (!artifactName.safeParse(file).success || taken.has(oneFile(file))) {
      throw new Failure(`${JSON.stringify(name)} is not a valid file name, so nothing is saved.`)
    }
    taken.add(oneFile(file))
    names.set(artifact, file)
  }
  return names
}

/** Some file systems ignore case and Unicode normalization. */
const oneFile = (name: string) => name.normalize('NFC').toLowerCase()

/** Writes a temporary file, and renames it if its hash is right. */
async function saveOne({ transport }: Connection, artifact: ArtifactShape, path: string): Promise<void> {
  const body = await transport.download(artifact.artifact_id)
  const aside = join(path, '..', `.ichido-${randomUUID()}.part`)
  try {
    const file = await open(aside, 'wx')
    try {
      await receive(body, artifact, file)
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(aside, path)
  } finally {
    await rm(aside, { force: true })
  }
}

async function receive(body: ReadableStream<Uint8Array>, artifact: ArtifactShape, file: FileHandle): Promise<void> {
  const { name, size_bytes: sizeBytes, sha256 } = artifact
  const hash = createHash('sha256')
  let bytes = 0
  const live = new LiveLine(() => bytesOf(name, bytes, sizeBytes))
  try {
    for await (const part of body) {
      hash.update(part)
      bytes += part.length
      // Does not fill the disk with bytes that are wrong already.
      if (bytes > (sizeBytes ?? Number.POSITIVE_INFINITY)) throw new Failure(`${name} is longer than expected.`)
      await file.writeFile(part)
    }
  } catch (error) {
    const isOwn = error instanceof Failure || (error instanceof Error && 'syscall' in error)
    throw isOwn
      ? error
      : new Failure(`${name} broke off after ${bytesText(bytes)}: ${innermost(error)}`, 'Run the command again.')
  } finally {
    live.end()
  }
  if (hash.digest('hex') !== sha256)
    throw new Failure(`${name} was damaged on the way: its SHA-256 does not match.`, 'Run the command again.')
}
