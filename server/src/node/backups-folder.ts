import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import type { World } from '@ichido/sdk/world'
import type { Backups } from '../services/deps.ts'
import type { BackupOrder } from '../store/backup/backup-beside.ts'
import type { BackupReport } from '../store/backup/backup-report.ts'
import { DATABASE_FILE } from '../store/engines/sqlite/sqlite.ts'

export const BACKUPS_FOLDER = 'backups'
const NAME = /^ichido-(\d{4}-\d\d-\d\dT)(\d\d)-(\d\d)-(\d\d\.\d{3}Z)\.backup$/
const PARTIAL = /\.backup\.partial$/

/** Compiled it is JavaScript; in the repository Node strips the types. */
const THREAD = new URL(`../store/backup/backup-thread${import.meta.url.slice(-3)}`, import.meta.url)

/** Backups of an embedded store, in a folder beside its database. Their names say when each was made. */
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
    // Of a process that died: the folder is this one's alone.
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
