import { closeSync, fstatSync, fsyncSync, ftruncateSync, openSync, readSync, writeFileSync } from 'node:fs'
import { writeDurably } from '../../worker/agent/output/files.ts'
import type { World } from '../../world.ts'
import { OutboxFull, OutboxTooNew, OutboxUnavailable } from '../errors.ts'
import { ITEMS_MAX, type ItemProgress, type OutboxStore, type StoredItem } from '../ports.ts'
import { FileLock } from './lock.ts'
import { encode, type Fact, Replay, VERSION } from './log.ts'

export interface FileStoreOptions {
  path: string
  world: Pick<World, 'after' | 'random' | 'uuid'>
  /** Called with a sentence about items that could not be read and the file that holds them now. */
  warn(message: string): void
}

/** So many lines that say nothing any more are worth a rewrite of the file. */
const DEAD_LINES_MAX = 1_000

/**
 * Items in an append-only file. Each line counts only after it was synced to the disk. Several processes can use the file at
 * once: each reads the lines of the others before it appends its own.
 */
export class FileStore implements OutboxStore {
  readonly #options: FileStoreOptions
  readonly #lock: FileLock
  #known = new Replay()

  constructor(options: FileStoreOptions) {
    this.#options = options
    this.#lock = new FileLock(`${options.path}.lock`, options.world)
  }

  add(item: StoredItem): Promise<StoredItem> {
    return this.#locked(() => {
      const items = [...this.#known.items.values()]
      const kept = items.find(({ key }) => key === item.key)
      if (kept !== undefined) return kept
      if (items.length >= ITEMS_MAX) {
        throw new OutboxFull(
          `There are ${ITEMS_MAX} items in ${this.#options.path}, which is the maximum; this item was not stored`,
        )
      }
      this.#append({ add: item })
      return item
    })
  }

  get(id: string): Promise<StoredItem | undefined> {
    return this.#locked(() => this.#known.items.get(id))
  }

  list(): Promise<StoredItem[]> {
    return this.#locked(() => [...this.#known.items.values()])
  }

  update(id: string, progress: ItemProgress): Promise<boolean> {
    return this.#changed(id, { update: id, progress })
  }

  remove(id: string): Promise<boolean> {
    return this.#changed(id, { remove: id })
  }

  /** Does nothing: the store keeps no file open between calls. */
  async close(): Promise<void> {}

  #changed(id: string, fact: Fact): Promise<boolean> {
    return this.#locked(() => {
      if (!this.#known.items.has(id)) return false
      this.#append(fact)
      return true
    })
  }

  /** The work itself is synchronous: within one turn of the lock nothing else of this process comes in between. */
  #locked<T>(work: () => T): Promise<T> {
    return this.#lock.run(() => {
      try {
        this.#catchUp()
        return work()
      } catch (error) {
        // Whatever went wrong, the file is the truth.
        this.#known = new Replay()
        if (!(error instanceof Error && 'syscall' in error)) throw error
        throw new OutboxUnavailable(`${this.#options.path} cannot be read or written: ${error.message}`, {
          cause: error,
        })
      }
    })
  }

  #append(fact: Fact): void {
    const line = Buffer.from(encode(fact))
    appendDurably(this.#options.path, line)
    this.#known.read(line)
  }

  #catchUp(): void {
    const { path } = this.#options
    const known = this.#known
    const added = known.bytes === 0 ? undefined : readAdded(path, known)
    if (added === undefined) this.#known = new Replay()
    this.#known.read(added ?? readAll(path))
    const { version, damaged, lines, items, bytes } = this.#known
    if (version > VERSION) {
      throw new OutboxTooNew(
        `${path} was written by a newer version (its format is ${version}, this program knows ${VERSION}); update this program, or use another file`,
      )
    }
    if (damaged.length > 0) this.#setDamagedAside()
    else if (bytes === 0 || lines - items.size > DEAD_LINES_MAX + items.size) this.#rewrite()
  }

  #setDamagedAside(): void {
    const { path, warn } = this.#options
    const { damaged, items } = this.#known
    const aside = `${path}.damaged`
    appendDurably(aside, Buffer.concat(damaged.flatMap(({ bytes }) => [bytes, Buffer.from('\n')])))
    this.#rewrite()
    const [first] = damaged
    const what = damaged.length === 1 ? 'One line' : `${damaged.length} lines`
    warn(
      `${what} of ${path} cannot be read (line ${first?.number}: ${first?.problem}) and were moved to ${aside}; ${items.size} items are intact.`,
    )
  }

  #rewrite(): void {
    const { path, world } = this.#options
    const facts = [...this.#known.items.values()].map((add) => ({ add }))
    const text = [header(world.uuid()), ...facts.map(encode)].join('')
    writeDurably(path, text)
    this.#known = new Replay()
    this.#known.read(Buffer.from(text))
  }
}

const header = (generation: string): string => encode({ header: { version: VERSION, generation } })

/** Undefined when it is another file than the one we know, or there is none. */
function readAdded(path: string, { generation, bytes }: Replay): Buffer | undefined {
  const first = Buffer.from(header(generation))
  const begun = readPart(path, 0, first.length)
  return begun?.equals(first) ? readPart(path, bytes) : undefined
}

function readAll(path: string): Buffer {
  return readPart(path, 0) ?? Buffer.alloc(0)
}

/** Undefined when there is no such file, or when it ends before. */
function readPart(path: string, from: number, length?: number): Buffer | undefined {
  const fd = openIfThere(path)
  if (fd === undefined) return undefined
  try {
    const wanted = length ?? fstatSync(fd).size - from
    if (wanted < 0) return undefined
    const part = Buffer.alloc(wanted)
    let read = 0
    for (let more = -1; more !== 0 && read < wanted; read += more)
      more = readSync(fd, part, read, wanted - read, from + read)
    return part.subarray(0, read)
  } finally {
    closeSync(fd)
  }
}

function openIfThere(path: string): number | undefined {
  try {
    return openSync(path, 'r')
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined
    throw error
  }
}

/** Wholly, or not at all if that can be helped: a full disk takes the first part of a line. */
function appendDurably(path: string, bytes: Buffer): void {
  const fd = openSync(path, 'a', 0o600)
  const { size } = fstatSync(fd)
  try {
    writeFileSync(fd, bytes)
    fsyncSync(fd)
  } catch (error) {
    ftruncateSync(fd, size)
    throw error
  } finally {
    closeSync(fd)
  }
}
