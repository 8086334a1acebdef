import { existsSync, mkdirSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { LeaseShape } from '../../../protocol/index.ts'
import type { Outbox, RunReport } from '../../loop/transport.ts'
import { parseJson, writeDurably } from '../output/files.ts'
import { readNoteText } from '../output/written-files.ts'

/** What a run has on disk: what it was given, what its program writes, and its report until that was heard. */
export interface RunFolder {
  /** The program's own, empty but for the artifacts of the job. */
  work: string
  outputs: string
  payloadFile: string
  stdoutFile: string
  stderrFile: string
  progressFile: string
  /** How far the log has got on its way. */
  logPlaceFile: string
  /** By what its program can be found and killed. */
  noteFile: string
  resultFile: string
  costFile: string
}

interface Kept {
  lease: LeaseShape
  report: RunReport
}

interface Abandoned {
  lease: LeaseShape
  folder: RunFolder
}

/** The folders of an agent's runs. */
export class RunFolders implements Outbox {
  readonly eager: boolean
  readonly #root: string

  constructor(root: string, eager: boolean) {
    this.eager = eager
    mkdirSync(root, { recursive: true, mode: 0o700 })
    // Without links: one on the way to a file of a run is its program's doing then.
    this.#root = realpathSync(root)
  }

  /** Anew and empty. */
  make(lease: LeaseShape): RunFolder {
    const folder = this.#folderOf(lease)
    rmSync(folder, { recursive: true, force: true })
    const paths = pathsIn(folder)
    mkdirSync(paths.outputs, { recursive: true, mode: 0o700 })
    writeFileSync(join(folder, LEASE_FILE), JSON.stringify({ ...lease, payload: null }))
    writeFileSync(paths.payloadFile, JSON.stringify(lease.payload))
    for (const file of [paths.stdoutFile, paths.stderrFile, paths.progressFile]) writeFileSync(file, '')
    return paths
  }

  async keep(lease: LeaseShape, report: RunReport): Promise<void> {
    const kept: Kept = { lease: { ...lease, payload: null }, report }
    writeDurably(join(this.#folderOf(lease), REPORT_FILE), JSON.stringify(kept))
  }

  async drop(lease: LeaseShape): Promise<void> {
    rmSync(this.#folderOf(lease), { recursive: true, force: true })
  }

  /** What the program of a run has left; null of one that had none. */
  find(lease: LeaseShape): RunFolder | null {
    const paths = pathsIn(this.#folderOf(lease))
    return existsSync(paths.outputs) ? paths : null
  }

  /** What an earlier process of this agent left: reports nobody heard, and runs that ended with it. */
  leftovers(): { kept: Kept[]; abandoned: Abandoned[] } {
    const kept: Kept[] = []
    const abandoned: Abandoned[] = []
    for (const name of readdirSync(this.#root)) {
      const folder = join(this.#root, name)
      const report = readJson(join(folder, REPORT_FILE)) as Kept | undefined
      const lease = readJson(join(folder, LEASE_FILE)) as LeaseShape | undefined
      if (report !== undefined) kept.push(report)
      else if (lease !== undefined) abandoned.push({ lease, folder: pathsIn(folder) })
      else rmSync(folder, { recursive: true, force: true })
    }
    return { kept, abandoned }
  }

  #folderOf({ job_id: jobId, attempt }: LeaseShape): string {
    return join(this.#root, `${jobId}.${attempt}`)
  }
}

const LEASE_FILE = 'lease.json'
const REPORT_FILE = 'report.json'

function pathsIn(folder: string): RunFolder {
  const work = join(folder, 'work')
  return {
    work,
    outputs: join(work, 'outputs'),
    payloadFile: join(folder, 'payload.json'),
    stdoutFile: join(folder, 'stdout'),
    stderrFile: join(folder, 'stderr'),
    progressFile: join(folder, 'progress'),
    logPlaceFile: join(folder, 'log-place.json'),
    noteFile: join(folder, 'program.json'),
    resultFile: join(folder, 'result.json'),
    costFile: join(folder, 'cost'),
  }
}

function readJson(path: string): unknown {
  const text = readNoteText(path)
  return text === null ? undefined : parseJson(text)
}
