import type { World } from '@ichido/sdk/world'
import { type ArchivedChunk, LOG_SHARDS, type LogArchive, type LogFile, logRefOf } from '../../log-archive/port.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Settings } from '../../services/system/settings.ts'
import { archiveLog, findLogRefs, findOldLogs, findRunLog } from '../../store/logs/archive-logs.ts'
import type { Store } from '../../store/port.ts'
import type { Leading } from '../election/elect.ts'

const DAY_MS = 24 * 3600 * 1000
const PART = { chunksMax: 100, bytesMax: 1024 * 1024 }
/** Subfolders that a turn checks for unneeded files. With a turn a minute all are checked in an hour. */
const SHARDS_PER_TURN = 4
const LOOKUP_MAX = 500
/** A file is older than this only if it will never be named. */
const STRAY_AGE_MS = DAY_MS

interface ArchiveOptions {
  world: Pick<World, 'uuid'>
  store: Store
  logArchive: LogArchive
  settings: Settings
  meter: Pick<Meter, 'logArchived'>
}

/** Moves logs of runs that ended long ago from the store to files, and removes unneeded files. */
export function createArchive(options: ArchiveOptions, leading: Leading): () => Promise<number | null> {
  const { store, settings } = options
  const tidy = createTidyLogs(options, leading)
  return async () => {
    const keepMs = settings.get('log_retention_days_db') * DAY_MS
    const batchMax = settings.get('archive_batch_max')
    const due = keepMs === 0 ? [] : await store.read(findOldLogs(keepMs, batchMax))
    const failures: unknown[] = []
    for (const runId of due) {
      if (!leading.trusted()) return null
      // A log that cannot be archived does not delay the others.
      await archiveRun(options, leading, runId).catch((error: unknown) => failures.push(error))
    }
    await tidy()
    if (failures.length > 0) throw failures[0]
    return due.length === batchMax ? 0 : null
  }
}

/**
 * The file is durable before the store names it, and the chunks are removed in the same transaction. A crash before
 * that leaves an unnamed file, and the next turn writes another.
 */
async function archiveRun({ world, store, logArchive, meter }: ArchiveOptions, leading: Leading, runId: string) {
  const file: LogFile = { runId, fileId: world.uuid() }
  const log = new StoredLog(store, runId)
  const fileBytes = await logArchive.write(file, log)
  if (await store.write(archiveLog(leading, { runId, lastN: log.lastN, logRef: logRefOf(file) }))) {
    meter.logArchived(log.bytes, fileBytes)
  }
}

/** Reads the log of a run in bounded parts. */
class StoredLog implements AsyncIterable<ArchivedChunk> {
  lastN = -1
  bytes = 0
  readonly #store: Store
  readonly #runId: string

  constructor(store: Store, runId: string) {
    this.#store = store
    this.#runId = runId
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ArchivedChunk> {
    for (;;) {
      const rows = await this.#store.read(findRunLog(this.#runId, this.lastN, PART))
      if (rows.length === 0) return
      for (const { n, stream, chunk, bytes, created_at } of rows) {
        if (chunk === null) throw new Error(`The log of run ${this.#runId} was archived by another node`)
        this.lastN = n
        this.bytes += bytes
        yield { n, stream, text: chunk, createdAtMs: created_at }
      }
    }
  }
}

/**
 * Removes files of runs without a log, and files that no log has named for a day. A file's id is used once, so an old
 * unnamed file will never be named.
 */
function createTidyLogs({ store, logArchive }: ArchiveOptions, leading: Leading): () => Promise<void> {
  let shard = 0

  async function isNeeded(file: LogFile, ref: string | null | undefined): Promise<boolean> {
    if (ref === undefined) return false
    return ref === logRefOf(file) || (await logArchive.ageMs(file)) < STRAY_AGE_MS
  }

  async function tidyShard(): Promise<void> {
    const found = await logArchive.list(shard)
    for (let at = 0; at < found.length && leading.trusted(); at += LOOKUP_MAX) {
      const some = found.slice(at, at + LOOKUP_MAX)
      const refs = await store.read(findLogRefs(some.map(({ runId }) => runId)))
      for (const file of some) if (!(await isNeeded(file, refs.get(file.runId)))) await logArchive.remove(file)
    }
  }

  return async () => {
    for (let turn = 0; turn < SHARDS_PER_TURN; turn++) {
      await tidyShard()
      shard = (shard + 1) % LOG_SHARDS
    }
  }
}
