import { DEFAULT_LEASE_TTL_MS } from '../../core/run/job.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/fold.ts'
import { heartbeatRuns } from '../runs/runs.sql.ts'
import {
  each,
  type InTurn,
  integer,
  integerOrNull,
  one,
  query,
  type Row,
  type SqlValue,
  text,
  textOrNull,
  type Work,
} from '../statement.ts'
import { plainLease } from './lease-plain.ts'
import { isFull, type KindRotation, type Leased, type LeaseFrom, type LeaseItem, nameOf, toLeases } from './leased.ts'
import {
  countHeld,
  enterLease,
  leasedByPoll,
  leaseRuns,
  leaseRunsFrom,
  PAYLOADS_BYTES_MAX,
  readyKinds,
} from './leases.sql.ts'

export type { KindRotation, Leased, LeaseFrom, LeaseItem, Position } from './leased.ts'

/** More kinds than this in one queue are not looked at together. */
const KINDS_MAX = 400
/** Of so many queues with more kinds than that it is known where to go on: those that were looked at last. */
const TURNS_MAX = 10_000
/** Where the parameters of a lease say how many bytes are left. */
const BYTES_LEFT = 9

/** One answer for each item, in their order. A worker that was revoked gets nothing. */
export function leaseBatch(
  items: readonly LeaseItem[],
  from: LeaseFrom = () => null,
  turns: KindRotation = new Map(),
): Command<Leased[][]> {
  function* work(again: boolean): Work<Leased[][]> {
    const { firsts } = foldBy(items, nameOf)
    const gate = yield* enter(firsts)
    const found = new Map<string, Row[]>()
    const asking = firsts.filter(({ workerId }) => !gate.revoked.has(workerId))
    yield* findEarlier(
      asking.filter((item) => again || item.named),
      found,
    )
    const open = asking.filter((item) => !found.has(nameOf(item)))
    yield* leaseOpen(open, { gate, from, turns, found, bytes: bytesOf([...found.values()].flat()) })
    return items.map((item) => toLeases(item, found.get(nameOf(item)) ?? []))
  }
  return command('lease', work, plainLease(items, from))
}

interface Gate {
  revoked: Set<string>
  paused: Set<string>
  /** How many more runs of a queue with a limit workers may hold. */
  free: Map<string, number>
}

function* enter(items: readonly LeaseItem[]): Work<Gate> {
  const rows = items.flatMap((item) => item.queues.map((queue) => [nameOf(item), queue, item.workerId]))
  const gate: Gate = { revoked: new Set(), paused: new Set(), free: new Map() }
  for (const row of yield* each(enterLease, rows)) {
    const [worker, queue] = [textOrNull(row, 'revoked'), textOrNull(row, 'queue')]
    if (worker !== null) gate.revoked.add(worker)
    if (queue === null || gate.paused.has(queue) || gate.free.has(queue)) continue
    const limit = integerOrNull(row, 'max_concurrent')
    if (integerOrNull(row, 'paused_at') !== null) gate.paused.add(queue)
    // Counted in a statement of its own: the one that locked the queue saw it as it was before it waited.
    else if (limit !== null) gate.free.set(queue, limit - integer(yield* one(countHeld, queue), 'held'))
  }
  return gate
}

/**
 * What was leased in an answer that got lost. It is a heartbeat, too: the leader may be waiting for this worker already, which
 * begins now and counts its time from this very call.
 */
function* findEarlier(items: readonly LeaseItem[], found: Map<string, Row[]>): Work<void> {
  const leased = yield* each(
    leasedByPoll,
    items.map(({ workerId, pollId }) => [workerId, pollId]),
  )
  const beats = yield* each(
    heartbeatRuns,
    leased.map((row) => [text(row, 'run_id'), text(row, 'worker_id'), text(row, 'lease_id'), DEFAULT_LEASE_TTL_MS]),
  )
  const held = new Set(beats.map((row) => text(row, 'lease_id')))
  // The others the leader has ended since they were read.
  for (const row of leased) if (held.has(text(row, 'lease_id'))) add(found, row)
}

function add(found: Map<string, Row[]>, row: Row): void {
  const name = JSON.stringify([text(row, 'worker_id'), text(row, 'poll_id')])
  const rows = found.get(name)
  if (rows === undefined) found.set(name, [row])
  else rows.push(row)
}

interface Look {
  gate: Gate
  from: LeaseFrom
  turns: KindRotation
  found: Map<string, Row[]>
  /** Of the payloads that were found. */
  bytes: number
}

interface Group {
  queue: string
  kinds: readonly string[]
  items: LeaseItem[]
}

/** First everybody's first queue, then the second of those who have not got enough, and so on. */
function* leaseOpen(items: readonly LeaseItem[], look: Look): Work<void> {
  const { gate, found } = look
  for (const item of items) found.set(nameOf(item), [])
  const rounds = Math.max(0, ...items.map(({ queues }) => queues.length))
  for (let round = 0; round < rounds; round++) {
    const groups = new Map<string, Group>()
    for (const item of items) {
      const queue = item.queues[round]
      if (queue === undefined || gate.paused.has(queue) || left(item, found) === 0) continue
      const name = JSON.stringify([queue, item.kinds])
      const group = groups.get(name) ?? { queue, kinds: item.kinds, items: [] }
      group.items.push(item)
      groups.set(name, group)
    }
    for (const group of groups.values()) yield* leaseGroup(group, look)
  }
}

const left = (item: LeaseItem, found: Map<string, Row[]>) => item.max - (found.get(nameOf(item))?.length ?? 0)

function* leaseGroup(group: Group, look: Look): Work<void> {
  const { queue } = group
  const { gate, from, turns, found } = look
  const asks = asksOf(group, gate.free.get(queue) ?? Number.POSITIVE_INFINITY, found)
  // Before the kinds take turns: one in which nobody may have anything would be lost on them.
  if (asks.length === 0 || isFull(look.bytes)) return
  const kinds = group.kinds.length > 0 ? [...new Set(group.kinds)] : yield* kindsIn(queue, turns)
  if (kinds.length === 0) return
  // Kinds that take turns are looked at from the beginning: the position is one among those whose turn it was.
  const position = group.kinds.length === 0 && turns.has(queue) ? null : from(queue, group.kinds)
  // What lies before the position is looked at when there is nothing behind it.
  for (const start of position === null ? [null] : [position, null]) {
    const rest = [PAYLOADS_BYTES_MAX - look.bytes, ...(start === null ? [] : [start.priority, start.fairTag])]
    const taken = yield* each(
      (start === null ? leaseRuns : leaseRunsFrom)(kinds.length),
      asks.map((ask): SqlValue[] => [queue, JSON.stringify(kinds), ...ask, gate.free.has(queue), ...rest]),
      inTurn(look.bytes),
    )
    for (const row of taken) add(found, row)
    look.bytes += bytesOf(taken)
    const free = gate.free.get(queue)
    if (free !== undefined) gate.free.set(queue, free - taken.length)
    if (taken.length > 0) return
  }
}

/** What the polls before have got is not left for the next: SQLite serves them one by one. */
function inTurn(bytes: number): InTurn {
  let sum = bytes
  return (row, answerBefore) => {
    sum += bytesOf(answerBefore)
    return isFull(sum) ? null : row.with(BYTES_LEFT, PAYLOADS_BYTES_MAX - sum)
  }
}

const bytesOf = (rows: readonly Row[]) => rows.reduce((sum, row) => sum + Buffer.byteLength(text(row, 'payload')), 0)

/** Of too many, those after the ones that were looked at last, and then the first again: no kind is kept from its turn. */
function* kindsIn(queue: string, turns: KindRotation): Work<string[]> {
  const last = turns.get(queue) ?? ''
  const kinds = new Set(yield* kindsAfter(queue, last, KINDS_MAX))
  if (last !== '' && kinds.size < KINDS_MAX) {
    for (const kind of yield* kindsAfter(queue, '', KINDS_MAX - kinds.size)) kinds.add(kind)
  }
  noteTurn(turns, queue, [...kinds][KINDS_MAX - 1])
  return [...kinds]
}

function* kindsAfter(queue: string, kind: string, max: number): Work<string[]> {
  return (yield* query(readyKinds, queue, kind, max)).map((row) => text(row, 'kind'))
}

/** `last`: unset when all kinds of the queue were looked at. */
function noteTurn(turns: KindRotation, queue: string, last: string | undefined): void {
  turns.delete(queue)
  if (last === undefined) return
  const [oldest] = turns.keys()
  if (turns.size >= TURNS_MAX && oldest !== undefined) turns.delete(oldest)
  turns.set(queue, last)
}

function asksOf({ items }: Group, free: number, found: Map<string, Row[]>): SqlValue[][] {
  const asks: SqlValue[][] = []
  let slots = free
  for (const item of items) {
    const max = Math.min(left(item, found), slots)
    if (max <= 0) continue
    slots -= max
    asks.push([max, item.workerId, item.pollId, item.token, item.leaseTtlMs, item.startId])
  }
  return asks
}
