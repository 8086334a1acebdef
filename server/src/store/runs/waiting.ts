import { isHeld } from '../../core/run/artifact.ts'
import type { RunState } from '../../core/run/run-state.ts'
import type { WaitingFacts } from '../../core/run/waiting.ts'
import { findQuota } from '../limits/quotas.ts'
import { type Command, command } from '../port.ts'
import {
  each,
  flag,
  integer,
  integerOrNull,
  one,
  query,
  type Row,
  type SqlValue,
  text,
  type Work,
} from '../statement.ts'
import {
  readAwaited,
  readHeldQueues,
  readNextGroup,
  readObstacles,
  readOldest,
  readReadyQueues,
  readRedriveOf,
  readServed,
} from './waiting.sql.ts'

const NAMES_MAX = 20

/** What keeps a job waiting, of which the caller knows when a worker for it has asked this node. */
export function findObstacles(job: Row, askedAgoMs: number | null, onlineMs: number): Command<WaitingFacts> {
  return command('find_obstacles', function* work(): Work<WaitingFacts> {
    const [jobId, queue, kind] = [text(job, 'job_id'), text(job, 'queue'), text(job, 'kind')]
    const row = yield* one(readObstacles, queue, kind, onlineMs)
    const runAtMs = integer(job, 'run_at')
    const awaited = isHeld(runAtMs) ? yield* query(readAwaited, jobId, NAMES_MAX) : []
    return {
      state: text(job, 'state') as RunState,
      queue,
      kind,
      runAtMs,
      nowMs: integer(row, 'now'),
      awaited: awaited.map((artifact) => text(artifact, 'name')),
      pausedAtMs: integerOrNull(row, 'paused_at'),
      maxConcurrent: integerOrNull(row, 'max_concurrent'),
      running: integer(row, 'running'),
      askedAgoMs,
      served: askedAgoMs !== null || flag(row, 'online') || flag(row, 'at_work'),
      redrive: yield* redriveOf(jobId),
    }
  })
}

/** How long the oldest run of a queue has been due, in a queue that is not paused. */
export interface WaitingQueue {
  queue: string
  oldestMs: number
}

/** Kinds and priorities of a queue that are looked at. */
const GROUPS_MAX = 200

/**
 * The queue that has waited longest first. It hops through the index, and looks at the first runs of each kind and priority alone:
 * looking at all of a million runs takes SQLite seconds.
 */
export function findWaitingQueues(): Command<WaitingQueue[]> {
  return command('find_waiting_queues', function* work(): Work<WaitingQueue[]> {
    const groups: SqlValue[][] = []
    let last = (yield* query(readReadyQueues)).map((row): SqlValue[] => [text(row, 'queue'), '', 0])
    for (let n = 0; n < GROUPS_MAX && last.length > 0; n++) {
      last = (yield* each(readNextGroup, last)).map((row) => [
        text(row, 'queue'),
        text(row, 'kind'),
        integer(row, 'priority'),
      ])
      groups.push(...last)
    }
    const oldest = new Map<string, number>()
    for (const row of yield* each(readOldest, groups)) {
      const queue = text(row, 'queue')
      // Null if its last run was taken between the two looks.
      oldest.set(queue, Math.max(oldest.get(queue) ?? 0, integerOrNull(row, 'oldest_ms') ?? 0))
    }
    return [...oldest].map(([queue, oldestMs]) => ({ queue, oldestMs })).sort((a, b) => b.oldestMs - a.oldestMs)
  })
}

/** Those of the queues of which a worker holds a run, or which one may take that was seen lately. */
export function findServedQueues(queues: readonly string[], onlineMs: number): Command<Set<string>> {
  return command('find_served_queues', function* work(): Work<Set<string>> {
    const asked = queues.map((queue) => [queue, onlineMs])
    const rows = [...(yield* query(readHeldQueues)), ...(yield* each(readServed, asked))]
    return new Set(rows.map((row) => text(row, 'queue')))
  })
}

function* redriveOf(jobId: string): Work<WaitingFacts['redrive']> {
  const row = yield* one(readRedriveOf, jobId)
  if (row === undefined) return null
  const { maxConcurrent, activeJobs, activeReservations } = yield* findQuota(text(row, 'user_id')).work(false)
  return { redriveId: text(row, 'id'), maxConcurrent, inUse: activeJobs + activeReservations }
}
