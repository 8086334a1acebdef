import { type Command, command } from '../port.ts'
import { each, one, query, statement, type Work } from '../statement.ts'
import { giveTags, type QueueTime, type Tagged } from './fair-tags.ts'

const DUE = `job_id, queue, user_id, priority FROM ichido.ready
    WHERE fair_tag IS NULL AND run_at <= (SELECT now_ms())`

/**
 * Delayed runs that are due. The time is a subquery: PostgreSQL would call a bare function for every row, and read the index to
 * its end, past all runs that are not due.
 */
const lockDue = statement('lock_due', {
  params: { max: 'integer' },
  row: { job_id: 'text', queue: 'text', user_id: 'text', priority: 'integer' },
  postgres: `SELECT ${DUE} ORDER BY run_at LIMIT $max FOR UPDATE SKIP LOCKED`,
  sqlite: `SELECT ${DUE} ORDER BY run_at LIMIT $max`,
})

/** With a tag, the run is in the index that leases read. */
const promoteRuns = statement('promote_runs', {
  params: { job_id: 'text', tag: 'integer' },
  row: {},
  postgres: `UPDATE ichido.ready r SET fair_tag = t.tag FROM unnest($job_id::uuid[], $tag::bigint[]) AS t(job_id, tag)
    WHERE by_key(r.job_id, t.job_id)`,
  sqlite: 'UPDATE ichido.ready SET fair_tag = $tag WHERE job_id = $job_id',
})

/** When the next delayed run is due, in ms from now; null when none waits. */
const nextDue = statement('next_due', {
  params: {},
  row: { in_ms: 'integer?' },
  sql: `SELECT min(run_at) - now_ms() AS in_ms FROM ichido.ready WHERE fair_tag IS NULL`,
})

interface Promoted {
  /** If this is the maximum, more may be due. */
  promoted: Tagged[]
  /** The time until the next delayed run is due; null when none waits. */
  nextInMs: number | null
}

/** Delayed runs that are due enter their queue, in the order of their due times. Any node may do it. */
export function promoteDue(max: number, leased: readonly QueueTime[]): Command<Promoted> {
  return command('promote', function* work(): Work<Promoted> {
    const due = yield* query(lockDue, { max })
    const runs = due.map(({ job_id, queue, user_id, priority }) => ({
      jobId: job_id,
      queue,
      userId: user_id,
      priority,
    }))
    const promoted = yield* giveTags(runs, leased)
    yield* each(
      promoteRuns,
      promoted.map(({ jobId, fairTag }) => ({ job_id: jobId, tag: fairTag })),
    )
    const next = yield* one(nextDue, {})
    return { promoted, nextInMs: next?.in_ms ?? null }
  })
}
