import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { each, integer, integerOrNull, one, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import { readyKinds } from './leases.sql.ts'
import {
  closeQueue,
  countQueue,
  insertQueue,
  listQueues,
  lockQueue,
  readFatalCodes,
  readHeads,
  readQueue,
  updateQueue,
} from './queues.sql.ts'

export interface QueueSettings {
  paused: boolean
  maxConcurrent: number | null
  leaseTtlSeconds: number | null
  continuationSeconds: number | null
  resultTtlSeconds: number | null
  /** A failure with one of these codes is not retried. */
  fatalErrorCodes: readonly string[] | null
}

export interface QueueRows {
  /** Undefined when nothing is set for it. */
  settings: Row | undefined
  counts: Row
}

const KINDS_MAX = 100

export function findQueue(name: string): Command<QueueRows> {
  return command('find_queue', () => readBoth(name))
}

function* readBoth(name: string): Work<QueueRows> {
  const settings = yield* one(readQueue, name)
  const counts = yield* one(countQueue, name)
  return { settings, counts: counts ?? {} }
}

/** By name, after that of the page before; a queue's name is never empty. */
export function findQueues(limit: number, after: string | null): Command<{ rows: Row[]; next: string | null }> {
  return command('find_queues', function* work() {
    const found = yield* query(listQueues, limit + 1, after ?? '')
    const rows = found.slice(0, limit)
    return { rows, next: found.length > limit ? textOrNull(rows.at(-1), 'name') : null }
  })
}

/** Sets what is given and leaves the rest. */
export function putQueue(name: string, changes: Partial<QueueSettings>, by: By): Command<QueueRows> {
  const closes = changes.paused === true || (changes.maxConcurrent ?? null) !== null
  return command('put_queue', function* work(again): Work<QueueRows> {
    if (closes) yield* query(closeQueue, name)
    yield* query(insertQueue, name)
    const before = toSettings(yield* one(lockQueue, name))
    if (yield* isRecorded(again, by)) return yield* readBoth(name)
    const after = { ...before, ...changes }
    const { paused, maxConcurrent, leaseTtlSeconds, continuationSeconds, resultTtlSeconds, fatalErrorCodes } = after
    const times = [leaseTtlSeconds, continuationSeconds, resultTtlSeconds] as const
    const codes = fatalErrorCodes === null ? null : JSON.stringify(fatalErrorCodes)
    yield* query(updateQueue, name, paused, maxConcurrent, ...times, codes)
    const [was, is] = [describe(before), describe(after)]
    if (JSON.stringify(was) !== JSON.stringify(is)) yield* record(by, 'queue.put', name, was, is)
    return yield* readBoth(name)
  })
}

function describe(settings: QueueSettings) {
  return {
    paused: settings.paused,
    max_concurrent: settings.maxConcurrent,
    lease_ttl_seconds: settings.leaseTtlSeconds,
    continuation_seconds: settings.continuationSeconds,
    result_ttl_seconds: settings.resultTtlSeconds,
    fatal_error_codes: settings.fatalErrorCodes,
  }
}

export function toSettings(row: Row | undefined): QueueSettings {
  return {
    paused: integerOrNull(row, 'paused_at') !== null,
    maxConcurrent: integerOrNull(row, 'max_concurrent'),
    leaseTtlSeconds: integerOrNull(row, 'lease_ttl_seconds'),
    continuationSeconds: integerOrNull(row, 'continuation_seconds'),
    resultTtlSeconds: integerOrNull(row, 'result_ttl_seconds'),
    fatalErrorCodes: toCodes(row),
  }
}

function toCodes(row: Row | undefined): string[] | null {
  const list = textOrNull(row, 'fatal_error_codes')
  return list === null ? null : (JSON.parse(list) as string[])
}

/** By queue, the error codes that are not retried. */
export function* findFatalCodes(names: readonly string[]): Work<Map<string, readonly string[]>> {
  const rows = yield* each(
    readFatalCodes,
    [...new Set(names)].map((name) => [name]),
  )
  return new Map(rows.map((row) => [text(row, 'name'), toCodes(row) ?? []]))
}

/** The tag of the run that comes next, over all kinds; null when none waits. */
export function* queueHead(name: string, priority: number): Work<number | null> {
  const kinds = (yield* query(readyKinds, name, '', KINDS_MAX)).map((row) => [name, text(row, 'kind'), priority])
  const tags = (yield* each(readHeads, kinds)).map((row) => integer(row, 'fair_tag'))
  return tags.length === 0 ? null : Math.min(...tags)
}
