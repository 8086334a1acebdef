import { existsSync, mkdirSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { LeaseShape } from '../../../protocol/index.ts'
import type { Outbox, RunReport } from '../../loop/ports.ts'
import { parseJson, readNoteText, writeDurably } from '../output/files.ts'

const LEASE_FILE = 'lease.json'
const REPORT_FILE = 'report.json'

/** The files of a run: its input, its output, and its report until that is delivered. */
export interface RunFolder {
  /** The program's folder, empty except for the artifacts of the job. */
  work: string
  outputs: string
  payloadFile: string
  stdoutFile: string
  stderrFile: string
  progressFile: string
  /** The position up to which the log was sent. */
  logPlaceFile: string
  /** The note by which its program can be found and killed. */
  noteFile: string
  resultFile: string
  costFile: string
}

interface KeptReport {
  lease: LeaseShape
  report: RunReport
}

interface AbandonedRun {
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
    // Resolved once: a link in the path of a run's file was then made by its program.
    this.#root = realpathSync(root)
  }

  /** Makes a new, empty folder. */
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
    const kept: KeptReport = { lease: { ...lease, payload: null }, report }
    writeDurably(join(this.#folderOf(lease), REPORT_FILE), JSON.stringify(kept))
  }

  async drop(lease: LeaseShape): Promise<void> {
    rmSync(this.#folderOf(lease), { recursive: true, force: true })
  }

  /** The folder of a run; null if the run had no program. */
  find(lease: LeaseShape): RunFolder | null {
    const paths = pathsIn(this.#folderOf(lease))
    return existsSync(paths.outputs) ? paths : null
  }

  /** The undelivered reports and the abandoned runs of an earlier process of this agent. */
  leftovers(): { kept: KeptReport[]; abandoned: AbandonedRun[] } {
    const kept: KeptReport[] = []
    const abandoned: AbandonedRun[] = []
    for (const name of readdirSync(this.#root)) {
      const folder = join(this.#root, name)
      const report = readJson(join(folder, REPORT_FILE)) as KeptReport | undefined
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
