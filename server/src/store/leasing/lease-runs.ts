import { type Command, commandIn, type FastPath } from '../port.ts'
import { foldBy } from '../runs/run-facts.ts'
import { each, eachStep, exactlyOne, query, readRows, type Work } from '../statement.ts'
import { heartbeatRuns } from './heartbeat-runs.ts'
import {
  countHeld,
  enterLease,
  leasedByPoll,
  leasePlain,
  leasePlainFrom,
  leaseRuns,
  leaseRunsFrom,
  PAYLOADS_BYTES_MAX,
  PLAIN_LEASE_ROW,
  readyKinds,
} from './lease-runs.sql.ts'
import {
  inQueueOrder,
  isFull,
  type KindRotation,
  type LeaseAnswer,
  type Leased,
  type LeasedRow,
  type LeaseItem,
  nameOf,
  type Positions,
  placeName,
  toLeased,
  toLeases,
} from './leased.ts'

export type { KindRotation, LeaseAnswer, Leased, LeaseItem, Position, Positions } from './leased.ts'

/** The most kinds of one queue that a lease scans together. */
const KINDS_MAX = 400

/**
 * The answer says which rotations of kinds have moved, and which scans began at the beginning. A revoked worker gets nothing. A
 * draining worker gets only the leases of an earlier answer that was lost.
 */
export function leaseBatch(
  items: readonly LeaseItem[],
  from: Positions = new Map(),
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
    const open = asking.filter((item) => !found.has(nameOf(item)) && !gate.draining.has(item.workerId))
    const [moved, scanned] = [new Map<string, string | null>(), new Set<string>()]
    const bytes = bytesOf([...found.values()].flat())
    yield* leaseOpen(open, { gate, from, rotation, moved, scanned, found, bytes })
    const leases = items.map((item) => toLeases(item, found.get(nameOf(item)) ?? []))
    return { leases, rotation: moved, scanned, draining: gate.draining }
  }
  return commandIn('batches', 'lease', work, plainLease(items, from))
}

/**
 * Most polls of a node ask for the same kinds of one queue. One statement and one round trip serve them all. The general path
 * needs five round trips.
 */
function plainLease(items: readonly LeaseItem[], from: Positions): FastPath<LeaseAnswer> | undefined {
  const [first] = items
  const [queue, ...otherQueues] = first?.queues ?? []
  if (first === undefined || queue === undefined || otherQueues.length > 0 || first.kinds.length === 0) return undefined
  const names = new Set(items.map(nameOf))
  const asked = JSON.stringify([first.queues, first.kinds])
  if (names.size < items.length || items.some(({ queues, kinds }) => JSON.stringify([queues, kinds]) !== asked)) {
    return undefined
  }
  const place = placeName(queue, first.kinds)
  const position = from.get(place) ?? null
  const kinds = JSON.stringify([...new Set(first.kinds)])
  const rows = items.map((item) => ({
    queue,
    kinds,
    max: item.max,
    worker_id: item.workerId,
    poll_id: item.pollId,
    token: item.token,
    lease_ttl_ms: item.leaseTtlMs,
    start_id: item.startId,
    poll: nameOf(item),
    from_priority: position?.priority ?? 0,
    from_fair_tag: position?.fairTag ?? 0,
  }))
  return {
    step: position === null ? eachStep(leasePlain, rows) : eachStep(leasePlainFrom, rows),
    settle(answer) {
      const [first] = readRows(leasePlain, answer.slice(0, 1))
      const leased = readRows(
        { row: PLAIN_LEASE_ROW },
        answer.filter((row) => row.job_id !== null),
      )
      // Without a run behind the position, the general path scans from the beginning.
      if (!first?.plain || (leased.length === 0 && position !== null)) return null
      const leases = rows.map((): Leased[] => [])
      for (const run of leased.toSorted(inQueueOrder)) {
        const [poll, list] = [rows[run.poll - 1], leases[run.poll - 1]]
        if (poll === undefined) throw new Error(`A lease answers poll ${run.poll}, which was not asked`)
        list?.push(toLeased(run, poll))
      }
      return {
        leases,
        rotation: new Map(),
        scanned: new Set(position === null ? [place] : []),
        draining: new Set(),
      }
    },
  }
}

interface Gate {
  revoked: Set<string>
  draining: Set<string>
  paused: Set<string>
  /** How many more runs of a queue with a limit workers may hold. */
  free: Map<string, number>
}

function* enter(items: readonly LeaseItem[]): Work<Gate> {
  const rows = items.flatMap((item) =>
    item.queues.map((queue) => ({ poll: nameOf(item), queue, worker_id: item.workerId })),
  )
  const gate: Gate = { revoked: new Set(), draining: new Set(), paused: new Set(), free: new Map() }
  for (const { barred_worker, revoked_at, queue, paused_at, max_concurrent } of yield* each(enterLease, rows)) {
    if (barred_worker !== null) (revoked_at === null ? gate.draining : gate.revoked).add(barred_worker)
    if (queue === null || gate.paused.has(queue) || gate.free.has(queue)) continue
    if (paused_at !== null) gate.paused.add(queue)
    // A statement of its own counts: the statement that locked the queue has a snapshot from before it waited.
    else if (max_concurrent !== null) {
      gate.free.set(queue, max_concurrent - (yield* exactlyOne(countHeld, { queue })).held)
    }
  }
  return gate
}

/**
 * Finds the leases of an answer that was lost. It is a heartbeat, too: the leader may already wait for this worker, which only
 * begins now.
 */
function* findEarlier(items: readonly LeaseItem[], found: Map<string, LeasedRow[]>): Work<void> {
  const leased = yield* each(
    leasedByPoll,
    items.map(({ workerId, pollId }) => ({ worker_id: workerId, poll_id: pollId })),
  )
  const beats = yield* each(
    heartbeatRuns,
    leased.map(({ job_id, worker_id, token }) => ({ job_id, worker_id, token })),
  )
  const held = new Set(beats.map((row) => row.job_id))
  // The leader has ended the other leases since they were read.
  for (const row of leased) if (held.has(row.job_id)) add(found, row)
}

function add(found: Map<string, LeasedRow[]>, row: LeasedRow): void {
  const name = JSON.stringify([row.worker_id, row.poll_id])
  const rows = found.get(name)
  if (rows === undefined) found.set(name, [row])
  else rows.push(row)
}

interface Look {
  gate: Gate
  from: Positions
  rotation: KindRotation
  /** The queues whose rotation has moved. */
  moved: Map<string, string | null>
  scanned: Set<string>
  found: Map<string, LeasedRow[]>
  /** Bytes of the payloads that were found. */
  bytes: number
}

interface Group {
  place: string
  queue: string
  kinds: readonly string[]
  items: LeaseItem[]
}

/** Leases from the first queue of each poll, then from the second queue of each poll that wants more, and so on. */
function* leaseOpen(items: readonly LeaseItem[], look: Look): Work<void> {
  const { gate, found } = look
  for (const item of items) found.set(nameOf(item), [])
  const rounds = Math.max(0, ...items.map(({ queues }) => queues.length))
  for (let round = 0; round < rounds; round++) {
    const groups = new Map<string, Group>()
    for (const item of items) {
      const queue = item.queues[round]
      if (queue === undefined || gate.paused.has(queue) || left(item, found) === 0) continue
      const place = placeName(queue, item.kinds)
      const group = groups.get(place) ?? { place, queue, kinds: item.kinds, items: [] }
      group.items.push(item)
      groups.set(place, group)
    }
    for (const group of groups.values()) yield* leaseGroup(group, look)
  }
}

const left = (item: LeaseItem, found: Map<string, LeasedRow[]>) => item.max - (found.get(nameOf(item))?.length ?? 0)

function* leaseGroup(group: Group, look: Look): Work<void> {
  const { place, queue } = group
  const { gate, from, found } = look
  const asks = asksOf(group, gate.free.get(queue) ?? Number.POSITIVE_INFINITY, found)
  // Before the kinds take turns: a turn without room for a run would be lost.
  if (asks.length === 0 || isFull(look.bytes)) return
  const kinds = group.kinds.length > 0 ? [...new Set(group.kinds)] : yield* kindsIn(queue, look)
  if (kinds.length === 0) return
  // Kinds that take turns are scanned from the beginning: the position belongs to the kinds of the turn before.
  const rotates = group.kinds.length === 0 && lastKind(queue, look) !== null
  const position = rotates ? null : (from.get(place) ?? null)
  // Without a run behind the position, the scan begins at the beginning.
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
    if (start === null && !rotates) look.scanned.add(place)
    for (const row of taken) add(found, row)
    look.bytes += bytesOf(taken)
    const free = gate.free.get(queue)
    if (free !== undefined) gate.free.set(queue, free - taken.length)
    if (taken.length > 0) return
  }
}

/** SQLite serves polls one by one: the bytes of one poll are not left for the next. */
function inTurn<Params extends { readonly bytes_left: number }>(bytes: number) {
  let sum = bytes
  return (params: Params, answerBefore: readonly LeasedRow[]): Params | null => {
    sum += bytesOf(answerBefore)
    return isFull(sum) ? null : { ...params, bytes_left: PAYLOADS_BYTES_MAX - sum }
  }
}

const bytesOf = (rows: readonly LeasedRow[]) => rows.reduce((sum, { payload }) => sum + Buffer.byteLength(payload), 0)

/** The last kind that was scanned, in this transaction or before it. */
function lastKind(queue: string, { moved, rotation }: Look): string | null {
  return (moved.has(queue) ? moved : rotation).get(queue) ?? null
}

/** The kinds after the last kind, and then the first kinds again. So each of many kinds has its turn. */
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
