import { isHeld } from '../../core/artifact.ts'
import type { RunState } from '../../core/run-state.ts'
import type { WaitingFacts } from '../../core/waiting.ts'
import { type Command, command } from '../port.ts'
import { readAwaited, readObstacles, readRedriveOf, readServed } from '../sql/waiting.ts'
import { each, flag, integer, integerOrNull, one, query, type Row, text, type Work } from '../statement.ts'
import { findQuota } from './quotas.ts'

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

/** Those of the queues that a worker may take which was seen lately. */
export function findServedQueues(queues: readonly string[], onlineMs: number): Command<Set<string>> {
  return command('find_served_queues', function* work(): Work<Set<string>> {
    const rows = yield* each(
      readServed,
      queues.map((queue) => [queue, onlineMs]),
    )
    return new Set(rows.map((row) => text(row, 'queue')))
  })
}

function* redriveOf(jobId: string): Work<WaitingFacts['redrive']> {
  const row = yield* one(readRedriveOf, jobId)
  if (row === undefined) return null
  const { maxConcurrent, activeJobs, activeReservations } = yield* findQuota(text(row, 'user_id')).work(false)
  return { redriveId: text(row, 'id'), maxConcurrent, inUse: activeJobs + activeReservations }
}
