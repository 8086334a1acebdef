import { createHash } from 'node:crypto'
import { parseJson } from '../../worker/agent/output/files.ts'
import type { ItemProgress, StoredItem } from '../ports.ts'
import { isRecord, parseItem, parseProgress, progressed } from '../stored-item.ts'

/**
 * The file's format. Each line is one fact, `CHECKSUM JSON`, and is only ever added; the first one says of which version
 * and generation the file is. A file that was rewritten is of another generation.
 */
export const VERSION = 1

export type Fact =
  | { header: { version: number; generation: string } }
  | { add: StoredItem }
  | { update: string; progress: ItemProgress }
  | { remove: string }

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

export interface DamagedLine {
  number: number
  bytes: Buffer
  problem: string
}

/** What the lines of a file come to. */
export class Replay {
  readonly items = new Map<string, StoredItem>()
  readonly damaged: DamagedLine[] = []
  /** Of the header; 0 until it was read. */
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
