import { isHeld } from '../../core/run/artifact.ts'
import type { RunState } from '../../core/run/run-state.ts'
import type { WaitingFacts } from '../../core/run/waiting.ts'
import { findQuota } from '../limits/quotas.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, integer, one, type ParamsOf, query, type Row, text, type Work } from '../statement.ts'
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
    const row = yield* exactlyOne(readObstacles, { queue, kind, online_ms: onlineMs })
    const runAtMs = integer(job, 'run_at')
    const awaited = isHeld(runAtMs) ? yield* query(readAwaited, { job_id: jobId, max: NAMES_MAX }) : []
    return {
      state: text(job, 'state') as RunState,
      queue,
      kind,
      runAtMs,
      nowMs: row.now,
      awaited: awaited.map((artifact) => artifact.name),
      pausedAtMs: row.paused_at,
      maxConcurrent: row.max_concurrent,
      running: row.running,
      askedAgoMs,
      served: askedAgoMs !== null || row.online || row.at_work,
      redrive: yield* redriveOf(jobId),
    }
  })
}

/** How long the oldest run of a queue has been due, in a queue that is not paused. */
export interface WaitingQueue {
  queue: string
  oldestMs: number
}

type Group = ParamsOf<typeof readNextGroup>

/** Kinds and priorities of a queue that are looked at. */
const GROUPS_MAX = 200

/**
 * The queue that has waited longest first. It hops through the index, and looks at the first runs of each kind and priority alone:
 * looking at all of a million runs takes SQLite seconds.
 */
export function findWaitingQueues(): Command<WaitingQueue[]> {
  return command('find_waiting_queues', function* work(): Work<WaitingQueue[]> {
    const groups: Group[] = []
    let last = (yield* query(readReadyQueues, {})).map(({ queue }): Group => ({ queue, kind: '', priority: 0 }))
    for (let n = 0; n < GROUPS_MAX && last.length > 0; n++) {
      last = yield* each(readNextGroup, last)
      groups.push(...last)
    }
    const oldest = new Map<string, number>()
    for (const { queue, oldest_ms } of yield* each(readOldest, groups)) {
      // Null if the last run of the group was taken between the two looks.
      oldest.set(queue, Math.max(oldest.get(queue) ?? 0, oldest_ms ?? 0))
    }
    return [...oldest].map(([queue, oldestMs]) => ({ queue, oldestMs })).sort((a, b) => b.oldestMs - a.oldestMs)
  })
}

/** Those of the queues of which a worker holds a run, or which one may take that was seen lately. */
export function findServedQueues(queues: readonly string[], onlineMs: number): Command<Set<string>> {
  return command('find_served_queues', function* work(): Work<Set<string>> {
    const asked = queues.map((queue) => ({ queue, online_ms: onlineMs }))
    const rows = [...(yield* query(readHeldQueues, {})), ...(yield* each(readServed, asked))]
    return new Set(rows.map((row) => row.queue))
  })
}

function* redriveOf(jobId: string): Work<WaitingFacts['redrive']> {
  const row = yield* one(readRedriveOf, { job_id: jobId })
  if (row === undefined) return null
  const { maxConcurrent, activeJobs, activeReservations } = yield* findQuota(row.user_id).work(false)
  return { redriveId: row.id, maxConcurrent, inUse: activeJobs + activeReservations }
}
