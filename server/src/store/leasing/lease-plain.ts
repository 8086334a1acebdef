import type { FastPath } from '../port.ts'
import { flag, text, textOrNull } from '../statement.ts'
import { type Leased, type LeaseFrom, type LeaseItem, nameOf, toLeases } from './leased.ts'
import { leasePlain, leasePlainFrom } from './leases.sql.ts'

/**
 * Most polls of a node ask for the same kinds of one queue. All of them are one statement and one journey to the database,
 * where entering, looking for an earlier answer and leasing in turn took five.
 */
export function plainLease(items: readonly LeaseItem[], from: LeaseFrom): FastPath<Leased[][]> | undefined {
  const [first] = items
  const [queue, ...otherQueues] = first?.queues ?? []
  if (first === undefined || queue === undefined || otherQueues.length > 0 || first.kinds.length === 0) return undefined
  const names = new Set(items.map(nameOf))
  const asked = JSON.stringify([first.queues, first.kinds])
  if (names.size < items.length || items.some(({ queues, kinds }) => JSON.stringify([queues, kinds]) !== asked)) {
    return undefined
  }
  const position = from(queue, first.kinds)
  const place = position === null ? [] : [position.priority, position.fairTag]
  const kinds = JSON.stringify([...new Set(first.kinds)])
  const rows = items.map((item) => {
    const { max, workerId, pollId, token, leaseTtlMs, startId } = item
    return [queue, kinds, max, workerId, pollId, token, leaseTtlMs, startId, nameOf(item), ...place]
  })
  return {
    step: { kind: 'each', statement: position === null ? leasePlain : leasePlainFrom, rows },
    settle(found) {
      const leased = found.filter((row) => textOrNull(row, 'run_id') !== null)
      // What lies before the position is looked at when there is nothing behind it.
      if (!flag(found[0], 'plain') || (leased.length === 0 && position !== null)) return null
      const byPoll = Map.groupBy(leased, (row) => JSON.stringify([text(row, 'worker_id'), text(row, 'poll_id')]))
      return items.map((item) => toLeases(item, byPoll.get(nameOf(item)) ?? []))
    },
  }
}
