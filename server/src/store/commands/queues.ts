import { type Command, command } from '../port.ts'
import { readyKinds } from '../sql/leases.ts'
import {
  closeQueue,
  countQueue,
  insertQueue,
  listQueues,
  lockQueue,
  readHeads,
  readQueue,
  updateQueue,
} from '../sql/queues.ts'
import { each, integer, integerOrNull, one, query, type Row, text, type Work } from '../statement.ts'
import { type By, isRecorded, record } from './audit.ts'

export interface QueueSettings {
  paused: boolean
  maxConcurrent: number | null
  leaseTtlSeconds: number | null
  continuationSeconds: number | null
  resultTtlSeconds: number | null
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

export function findQueues(): Command<Row[]> {
  return command('find_queues', () => query(listQueues))
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
    const { paused, maxConcurrent, leaseTtlSeconds, continuationSeconds, resultTtlSeconds } = after
    yield* query(updateQueue, name, paused, maxConcurrent, leaseTtlSeconds, continuationSeconds, resultTtlSeconds)
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
  }
}

export function toSettings(row: Row | undefined): QueueSettings {
  return {
    paused: integerOrNull(row, 'paused_at') !== null,
    maxConcurrent: integerOrNull(row, 'max_concurrent'),
    leaseTtlSeconds: integerOrNull(row, 'lease_ttl_seconds'),
    continuationSeconds: integerOrNull(row, 'continuation_seconds'),
    resultTtlSeconds: integerOrNull(row, 'result_ttl_seconds'),
  }
}

/** The tag of the run that comes next, over all kinds; null when none waits. */
export function findQueueHead(name: string, priority: number): Command<number | null> {
  return command('find_queue_head', function* work(): Work<number | null> {
    const kinds = (yield* query(readyKinds, name, '', KINDS_MAX)).map((row) => [name, text(row, 'kind'), priority])
    const tags = (yield* each(readHeads, kinds)).map((row) => integer(row, 'fair_tag'))
    return tags.length === 0 ? null : Math.min(...tags)
  })
}
