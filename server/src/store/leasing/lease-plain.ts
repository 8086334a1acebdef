import type { FastPath } from '../port.ts'
import { eachStep, readRows } from '../statement.ts'
import { type LeaseAnswer, type LeaseFrom, type LeaseItem, nameOf, toLeases } from './leased.ts'
import { leasePlain, leasePlainFrom, NEW_LEASE_ROW } from './leases.sql.ts'

/**
 * Most polls of a node ask for the same kinds of one queue. All of them are one statement and one journey to the database,
 * where entering, looking for an earlier answer and leasing in turn took five.
 */
export function plainLease(items: readonly LeaseItem[], from: LeaseFrom): FastPath<LeaseAnswer> | undefined {
  const [first] = items
  const [queue, ...otherQueues] = first?.queues ?? []
  if (first === undefined || queue === undefined || otherQueues.length > 0 || first.kinds.length === 0) return undefined
  const names = new Set(items.map(nameOf))
  const asked = JSON.stringify([first.queues, first.kinds])
  if (names.size < items.length || items.some(({ queues, kinds }) => JSON.stringify([queues, kinds]) !== asked)) {
    return undefined
  }
  const position = from(queue, first.kinds)
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
      const [first] = readRows(leasePlain, answer)
      const leased = readRows(
        { row: NEW_LEASE_ROW },
        answer.filter((row) => row.run_id !== null),
      )
      // What lies before the position is looked at when there is nothing behind it.
      if (!first?.plain || (leased.length === 0 && position !== null)) return null
      const byPoll = Map.groupBy(leased, (row) => JSON.stringify([row.worker_id, row.poll_id]))
      return { leases: items.map((item) => toLeases(item, byPoll.get(nameOf(item)) ?? [])), rotation: new Map() }
    },
  }
}
