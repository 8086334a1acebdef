import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, vi } from 'vitest'
import { alive } from '../../../scripts/services/process-tree.ts'
import type { Plane } from './plane.ts'
import { type Note, notesOf, type PythonWorker, startWorker, type WorkerOptions } from './python.ts'

export const WITHIN = { timeout: 30_000, interval: 30 }

const named = (() => {
  let count = 0
  return (word: string) => `${word}-${++count}`
})()

/** A worker that is enrolled for its own queue, and the notes of its handlers. */
export async function enlist(
  python: string,
  plane: Plane,
  handlers: readonly string[],
  changes: Partial<WorkerOptions> = {},
) {
  const queue = named('queue')
  const [ledger, tokenFile] = [join(plane.folder, `${queue}.ledger`), join(plane.folder, `${queue}.json`)]
  const enroll = await plane.enroll()
  const options = { url: plane.urls[0] ?? '', queue, enroll, tokenFile, ledger, handlers, ...changes }
  return { queue, options, worker: startWorker(python, options), notes: () => notesOf(ledger) }
}

export const firstNote = (notes: () => Note[]) =>
  vi.waitFor(() => {
    const [note] = notes()
    if (note === undefined) throw new Error('Nothing was noted yet')
    return note
  }, WITHIN)

export const gone = (...pids: (number | undefined)[]) =>
  vi.waitFor(() => expect(pids.filter((pid) => pid !== undefined && alive(pid))).toEqual([]), WITHIN)

export async function stopped(worker: PythonWorker) {
  worker.kill('SIGTERM')
  return worker.ended
}

/** The stored identity of a worker. */
export interface Kept {
  worker_id: string
  worker_token: string
}

export const kept = (file: string) => JSON.parse(readFileSync(file, 'utf8')) as Kept
