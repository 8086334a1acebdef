import { type By, isRecorded, record } from '../access/audit.ts'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, pageOf, query, type RowOf, type Work } from '../statement.ts'
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
  settings: Omit<SettingsRow, 'name'> | undefined
  counts: RowOf<typeof countQueue>
}

type SettingsRow = RowOf<typeof readQueue>
export type ListedQueue = RowOf<typeof listQueues>

const KINDS_MAX = 100

export function findQueue(name: string): Command<QueueRows> {
  return command('find_queue', () => readBoth(name))
}

function* readBoth(name: string): Work<QueueRows> {
  return { settings: yield* one(readQueue, { name }), counts: yield* exactlyOne(countQueue, { queue: name }) }
}

/** By name, after that of the page before; a queue's name is never empty. */
export function findQueues(limit: number, after: string | null): Command<Listed<ListedQueue>> {
  return command('find_queues', function* work(): Work<Listed<ListedQueue>> {
    const found = yield* query(listQueues, { max: limit + 1, after: after ?? '' })
    return pageOf(found, limit, ({ name }) => name)
  })
}

/** Sets what is given and leaves the rest. */
export function putQueue(name: string, changes: Partial<QueueSettings>, by: By): Command<QueueRows> {
  const closes = changes.paused === true || (changes.maxConcurrent ?? null) !== null
  return command('put_queue', function* work(again): Work<QueueRows> {
    if (closes) yield* query(closeQueue, { name })
    yield* query(insertQueue, { name })
    const before = toSettings(yield* one(lockQueue, { name }))
    if (yield* isRecorded(again, by)) return yield* readBoth(name)
    const after = { ...before, ...changes }
    const [was, is] = [describe(before), describe(after)]
    const codes = after.fatalErrorCodes === null ? null : JSON.stringify(after.fatalErrorCodes)
    yield* query(updateQueue, { name, ...is, fatal_error_codes: codes })
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

export function toSettings(row: QueueRows['settings']): QueueSettings {
  return {
    paused: (row?.paused_at ?? null) !== null,
    maxConcurrent: row?.max_concurrent ?? null,
    leaseTtlSeconds: row?.lease_ttl_seconds ?? null,
    continuationSeconds: row?.continuation_seconds ?? null,
    resultTtlSeconds: row?.result_ttl_seconds ?? null,
    fatalErrorCodes: row?.fatal_error_codes ?? null,
  }
}

/** By queue, the error codes that are not retried. */
export function* findFatalCodes(names: readonly string[]): Work<Map<string, readonly string[]>> {
  const rows = yield* each(
    readFatalCodes,
    [...new Set(names)].map((name) => ({ name })),
  )
  return new Map(rows.map((row) => [row.name, row.fatal_error_codes]))
}

/** The tag of the run that comes next, over all kinds; null when none waits. */
export function* queueHead(queue: string, priority: number): Work<number | null> {
  const kinds = yield* query(readyKinds, { queue, after: '', max: KINDS_MAX })
  const heads = yield* each(
    readHeads,
    kinds.map(({ kind }) => ({ queue, kind, priority })),
  )
  return heads.length === 0 ? null : Math.min(...heads.map((row) => row.fair_tag))
}
