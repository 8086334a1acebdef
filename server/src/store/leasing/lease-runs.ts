import { DEFAULT_LEASE_TTL_MS } from '../../core/run/job.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/fold.ts'
import { heartbeatRuns } from '../runs/runs.sql.ts'
import { each, exactlyOne, query, type Work } from '../statement.ts'
import { plainLease } from './lease-plain.ts'
import {
  isFull,
  type KindRotation,
  type LeaseAnswer,
  type LeasedRow,
  type LeaseFrom,
  type LeaseItem,
  nameOf,
  toLeases,
} from './leased.ts'
import {
  countHeld,
  enterLease,
  leasedByPoll,
  leaseRuns,
  leaseRunsFrom,
  PAYLOADS_BYTES_MAX,
  readyKinds,
} from './leases.sql.ts'

export type { KindRotation, LeaseAnswer, Leased, LeaseFrom, LeaseItem, Position } from './leased.ts'

/** More kinds than this in one queue are not looked at together. */
const KINDS_MAX = 400

/** Takes where each queue's rotation of kinds stands, and answers with what has moved. A worker that was revoked gets nothing. */
export function leaseBatch(
  items: readonly LeaseItem[],
  from: LeaseFrom = () => null,
  rotation: KindRotation = new Map(),
): Command<LeaseAnswer> {
  function* work(again: boolean): Work<LeaseAnswer> {
    const { firsts } = foldBy(items, nameOf)
    const gate = yield* enter(firsts)
    const found = new Map<string, LeasedRow[]>()
    const asking = firsts.filter(({ workerId }) => !gate.revoked.has(workerId))
    yield* findEarlier(
      asking.filter((item) => again || item.named),
      found,
    )
    const open = asking.filter((item) => !found.has(nameOf(item)))
    const moved = new Map<string, string | null>()
    const bytes = bytesOf([...found.values()].flat())
    yield* leaseOpen(open, { gate, from, rotation, moved, found, bytes })
    return { leases: items.map((item) => toLeases(item, found.get(nameOf(item)) ?? [])), rotation: moved }
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
  const rows = items.flatMap((item) =>
    item.queues.map((queue) => ({ poll: nameOf(item), queue, worker_id: item.workerId })),
  )
  const gate: Gate = { revoked: new Set(), paused: new Set(), free: new Map() }
  for (const { revoked, queue, paused_at, max_concurrent } of yield* each(enterLease, rows)) {
    if (revoked !== null) gate.revoked.add(revoked)
    if (queue === null || gate.paused.has(queue) || gate.free.has(queue)) continue
    if (paused_at !== null) gate.paused.add(queue)
    // Counted in a statement of its own: the one that locked the queue saw it as it was before it waited.
    else if (max_concurrent !== null) {
      gate.free.set(queue, max_concurrent - (yield* exactlyOne(countHeld, { queue })).held)
    }
  }
  return gate
}

/**
 * What was leased in an answer that got lost. It is a heartbeat, too: the leader may be waiting for this worker already, which
 * begins now and counts its time from this very call.
 */
function* findEarlier(items: readonly LeaseItem[], found: Map<string, LeasedRow[]>): Work<void> {
  const leased = yield* each(
    leasedByPoll,
    items.map(({ workerId, pollId }) => ({ worker_id: workerId, poll_id: pollId })),
  )
  const beats = yield* each(
    heartbeatRuns,
    leased.map(({ run_id, worker_id, lease_id }) => ({ run_id, worker_id, lease_id, ttl_ms: DEFAULT_LEASE_TTL_MS })),
  )
  const held = new Set(beats.map((row) => row.lease_id))
  // The leader has ended the others since they were read.
  for (const row of leased) if (held.has(row.lease_id)) add(found, row)
}

function add(found: Map<string, LeasedRow[]>, row: LeasedRow): void {
  const name = JSON.stringify([row.worker_id, row.poll_id])
  const rows = found.get(name)
  if (rows === undefined) found.set(name, [row])
  else rows.push(row)
}

interface Look {
  gate: Gate
  from: LeaseFrom
  rotation: KindRotation
  /** The queues whose rotation has moved. */
  moved: Map<string, string | null>
  found: Map<string, LeasedRow[]>
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

const left = (item: LeaseItem, found: Map<string, LeasedRow[]>) => item.max - (found.get(nameOf(item))?.length ?? 0)

function* leaseGroup(group: Group, look: Look): Work<void> {
  const { queue } = group
  const { gate, from, found } = look
  const asks = asksOf(group, gate.free.get(queue) ?? Number.POSITIVE_INFINITY, found)
  // Before the kinds take turns: one in which nobody may have anything would be lost on them.
  if (asks.length === 0 || isFull(look.bytes)) return
  const kinds = group.kinds.length > 0 ? [...new Set(group.kinds)] : yield* kindsIn(queue, look)
  if (kinds.length === 0) return
  // Kinds that take turns are looked at from the beginning: the position is one among those whose turn it was.
  const position = group.kinds.length === 0 && lastKind(queue, look) !== null ? null : from(queue, group.kinds)
  // What lies before the position is looked at when there is nothing behind it.
  for (const start of position === null ? [null] : [position, null]) {
    const limited = gate.free.has(queue)
    const shared = { queue, kinds: JSON.stringify(kinds), limited, bytes_left: PAYLOADS_BYTES_MAX - look.bytes }
    const rows = asks.map((ask) => ({
      ...ask,
      ...shared,
      from_priority: start?.priority ?? 0,
      from_fair_tag: start?.fairTag ?? 0,
    }))
    const taken =
      start === null
        ? yield* each(leaseRuns(kinds.length), rows, inTurn(look.bytes))
        : yield* each(leaseRunsFrom(kinds.length), rows, inTurn(look.bytes))
    for (const row of taken) add(found, row)
    look.bytes += bytesOf(taken)
    const free = gate.free.get(queue)
    if (free !== undefined) gate.free.set(queue, free - taken.length)
    if (taken.length > 0) return
  }
}

/** The bytes that a poll has got are not left for the next: SQLite serves them one by one. */
function inTurn<Params extends { readonly bytes_left: number }>(bytes: number) {
  let sum = bytes
  return (params: Params, answerBefore: readonly LeasedRow[]): Params | null => {
    sum += bytesOf(answerBefore)
    return isFull(sum) ? null : { ...params, bytes_left: PAYLOADS_BYTES_MAX - sum }
  }
}

const bytesOf = (rows: readonly LeasedRow[]) => rows.reduce((sum, { payload }) => sum + Buffer.byteLength(payload), 0)

/** The last kind that was looked at, in this transaction or before it. */
function lastKind(queue: string, { moved, rotation }: Look): string | null {
  return (moved.has(queue) ? moved : rotation).get(queue) ?? null
}

/** Of too many kinds, those after the last one, and then the first again: each kind has its turn. */
function* kindsIn(queue: string, look: Look): Work<string[]> {
  const last = lastKind(queue, look) ?? ''
  const kinds = new Set(yield* kindsAfter(queue, last, KINDS_MAX))
  if (last !== '' && kinds.size < KINDS_MAX) {
    for (const kind of yield* kindsAfter(queue, '', KINDS_MAX - kinds.size)) kinds.add(kind)
  }
  look.moved.set(queue, [...kinds][KINDS_MAX - 1] ?? null)
  return [...kinds]
}

function* kindsAfter(queue: string, after: string, max: number): Work<string[]> {
  return (yield* query(readyKinds, { queue, after, max })).map((row) => row.kind)
}

interface Ask {
  max: number
  worker_id: string
  poll_id: string
  token: string
  lease_ttl_ms: number
  start_id: string | null
}

function asksOf({ items }: Group, free: number, found: Map<string, LeasedRow[]>): Ask[] {
  const asks: Ask[] = []
  let slots = free
  for (const item of items) {
    const max = Math.min(left(item, found), slots)
    if (max <= 0) continue
    slots -= max
    asks.push({
      max,
      worker_id: item.workerId,
      poll_id: item.pollId,
      token: item.token,
      lease_ttl_ms: item.leaseTtlMs,
      start_id: item.startId,
    })
  }
  return asks
}
