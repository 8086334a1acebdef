import { mkdirSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { join } from 'node:path'
import { open } from 'ichido'
import { Api } from './api.ts'
import { BookmarkTable } from './bookmark-table.ts'
import { Changes } from './changes.ts'
import { openDatabase } from './database.ts'
import { FailedJobTable } from './failed-job-table.ts'
import { bookmarkProcessing, RETRY_BASE_SECONDS } from './job.ts'
import type { PageFile } from './page-files.ts'
import { Processing } from './processing.ts'
import { internet, type Network } from './reading/fetch-page.ts'
import { extractive, type Summariser } from './reading/summarise.ts'
import { bookmarkShape } from './shapes.ts'
import { WebServer } from './web-server.ts'

export interface AppOptions {
  /** The folder of the two databases. */
  folder: string
  /** 0 means a free port. */
  port: number
  /** The files of the page, by path. */
  files: ReadonlyMap<string, PageFile>
  /** Called with errors outside of any request. */
  onTrouble(error: unknown): void
  /** The owner of the bookmarks. By default all users of this machine share them. */
  userOf?(request: IncomingMessage): string
  network?: Network
  summariser?: Summariser
  retryBaseSeconds?: number
}

export interface App {
  url: string
  close(): Promise<void>
}

/** Starts the application, including its processing, in this process. */
export async function startApp(options: AppOptions): Promise<App> {
  const {
    folder,
    port,
    files,
    onTrouble,
    userOf = () => 'local',
    network = internet,
    summariser = extractive,
  } = options
  mkdirSync(folder, { recursive: true })
  // This comes first, because it refuses a folder that another process uses.
  const ichido = await open({ dataDir: join(folder, 'ichido'), onTrouble: (_, error) => onTrouble(error) })
  const database = openDatabase(join(folder, 'bookmarks.db'))
  const bookmarks = new BookmarkTable(database)
  const failedJobs = new FailedJobTable(database)
  const changes = new Changes()
  const changed = (id: string) => {
    const bookmark = bookmarks.find(id)
    if (bookmark !== null) changes.tell(bookmark.user_id, bookmarkShape(bookmark))
  }
  const kind = bookmarkProcessing(options.retryBaseSeconds ?? RETRY_BASE_SECONDS)
  const processing = new Processing({ ichido, kind, bookmarks, failedJobs, network, summariser, changed, onTrouble })
  const api = new Api({ database, bookmarks, failedJobs, processing, changes, changed, userOf, onTrouble })
  const server = new WebServer({ files, api, onTrouble })

  async function close(): Promise<void> {
    server.close()
    processing.close()
    // Running jobs are released, and continue after the next start.
    await ichido.close({ drainMs: 0 })
    database.close()
  }
  try {
    processing.start()
    return { url: await server.listen(port), close }
  } catch (error) {
    await close()
    throw error
  }
}
