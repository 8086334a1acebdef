import { createHash } from 'node:crypto'
import { closeSync, fstatSync, fsyncSync, ftruncateSync, openSync, readSync, writeFileSync } from 'node:fs'
import { parseJson, writeDurably } from '../../worker/agent/output/files.ts'
import type { World } from '../../world.ts'
import {
  type ItemProgress,
  isRecord,
  OutboxFull,
  OutboxTooNew,
  OutboxUnavailable,
  parseItem,
  parseProgress,
  progressed,
  type StoredItem,
} from '../item.ts'
import { ITEMS_MAX, type OutboxStore } from '../ports.ts'
import { FileLock } from './lock.ts'

/**
 * The version of the file format. Each line is one fact, `CHECKSUM JSON`, and lines are only appended. The first line has the
 * version and the generation; a rewritten file has a new generation.
 */
const VERSION = 1
/** The file is rewritten when it has this many obsolete lines. */
const DEAD_LINES_MAX = 1_000

/** The options of a `FileStore`. */
export interface FileStoreOptions {
  /** The file of the outbox. */
  path: string
  /** Timers, randomness and ids. */
  world: Pick<World, 'after' | 'random' | 'uuid'>
  /** Called with a sentence about items that could not be read and the file that holds them now. */
  warn(message: string): void
}

type Fact =
  | { header: { version: number; generation: string } }
  | { add: StoredItem }
  | { update: string; progress: ItemProgress }
  | { remove: string }

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

  /** The work is synchronous, so nothing else of this process runs in between. */
  #locked<T>(work: () => T): Promise<T> {
    return this.#lock.run(() => {
      try {
        this.#catchUp()
        return work()
      } catch (error) {
        // After an error the file is read again.
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

/** Undefined if the file was rewritten or removed. */
function readAdded(path: string, { generation, bytes }: Replay): Buffer | undefined {
  const first = Buffer.from(header(generation))
  const begun = readPart(path, 0, first.length)
  return begun?.equals(first) ? readPart(path, bytes) : undefined
}

function readAll(path: string): Buffer {
  return readPart(path, 0) ?? Buffer.alloc(0)
}

/** Undefined if the file does not exist or is shorter. */
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

/** Appends all bytes or, if possible, none: a full disk takes only a part of a line. */
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

export function encode(fact: Fact): string {
  const json = JSON.stringify(fact)
  return `${checksum(json)} ${json}\n`
}

function checksum(json: string): string {
  return createHash('sha256').update(json).digest('hex').slice(0, 8)
}

type Decoded = { ok: true; fact: Fact } | { ok: false; problem: string }

function decode(line: string): Decoded {
  const json = line.slice(9)
  if (line[8] !== ' ' || checksum(json) !== line.slice(0, 8)) return { ok: false, problem: 'its checksum is wrong' }
  const fact = parseJson(json)
  if (!isRecord(fact)) return { ok: false, problem: 'it is not an outbox entry' }
  const { header, add, update, remove, progress } = fact
  if (isRecord(header)) return decodeHeader(header)
  if (add !== undefined) {
    const item = parseItem(add)
    return item.ok ? { ok: true, fact: { add: item.value } } : item
  }
  if (typeof update === 'string') {
    const changed = parseProgress(progress)
    return changed.ok ? { ok: true, fact: { update, progress: changed.value } } : changed
  }
  return typeof remove === 'string'
    ? { ok: true, fact: { remove } }
    : { ok: false, problem: 'it is an unknown sort of entry' }
}

function decodeHeader({ version, generation }: Record<string, unknown>): Decoded {
  return typeof version === 'number' && typeof generation === 'string'
    ? { ok: true, fact: { header: { version, generation } } }
    : { ok: false, problem: 'it is not an outbox header' }
}

interface DamagedLine {
  number: number
  bytes: Buffer
  problem: string
}

/** The items that result from the lines of a file. */
export class Replay {
  readonly items = new Map<string, StoredItem>()
  readonly damaged: DamagedLine[] = []
  /** From the header; 0 until it is read. */
  version = 0
  generation = ''
  lines = 0
  /** How many bytes were read. */
  bytes = 0

  read(part: Buffer): void {
    let from = 0
    while (from < part.length) {
      const end = part.indexOf(0x0a, from)
      this.#readLine(part.subarray(from, end < 0 ? undefined : end), end >= 0)
      from = end < 0 ? part.length : end + 1
    }
    this.bytes += part.length
  }

  #readLine(bytes: Buffer, whole: boolean): void {
    this.lines += 1
    const line = decode(bytes.toString('utf8'))
    const problem = !whole ? 'it is incomplete' : !line.ok ? line.problem : this.#misplaced(line.fact)
    if (line.ok && problem === undefined) this.apply(line.fact)
    else this.damaged.push({ number: this.lines, bytes, problem: problem ?? '' })
  }

  #misplaced(fact: Fact): string | undefined {
    if (this.lines === 1) return 'header' in fact ? undefined : 'the file must begin with its header'
    return 'header' in fact ? 'a header may only be the first line' : undefined
  }

  apply(fact: Fact): void {
    if ('header' in fact) {
      this.version = fact.header.version
      this.generation = fact.header.generation
    } else if ('add' in fact) this.items.set(fact.add.id, fact.add)
    else if ('update' in fact) {
      const item = this.items.get(fact.update)
      if (item !== undefined) this.items.set(item.id, progressed(item, fact.progress))
    } else this.items.delete(fact.remove)
  }
}
