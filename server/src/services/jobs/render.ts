import type { JobDetail, JobShape, JobState, RunErrorShape, RunShape, WaitingForShape } from '@ichido/sdk/protocol'
import { clip } from '../../core/json/text.ts'
import { MICROS } from '../../core/limits/quota.ts'
import { isHeld, wantedRunAt } from '../../core/run/artifact.ts'
import { type JobPolicy, toBackoffShape } from '../../core/run/job.ts'
import type { JobRows } from '../../store/jobs/read-jobs.ts'
import { integer, integerOrNull, type Row, text, textOrNull } from '../../store/statement.ts'
import type { PromiseCounts } from '../../store/system/promise-counters.ts'
import { iso, isoOrNull } from '../answers.ts'

/** Renders rows of the store in the form of the API. */

const time = (row: Row, column: string) => isoOrNull(integerOrNull(row, column))

function errorOf(row: Row): RunErrorShape | null {
  const error = textOrNull(row, 'error')
  return error === null ? null : (JSON.parse(error) as RunErrorShape)
}

/** A list has up to 200 errors, so their messages are cut. The detail of a job has the whole message. */
export const LISTED_MESSAGE_MAX = 1_000

export function renderListed(row: Row): JobShape {
  const error = errorOf(row)
  return renderJob(row, error && { code: error.code, message: clip(error.message, LISTED_MESSAGE_MAX) })
}

function renderJob(row: Row, error: RunErrorShape | null): JobShape {
  return {
    job_id: text(row, 'job_id'),
    kind: text(row, 'kind'),
    queue: text(row, 'queue'),
    user_id: text(row, 'user_id'),
    state: text(row, 'state') as JobState,
    priority: integer(row, 'priority'),
    attempt: integer(row, 'attempt'),
    retry_count: integer(row, 'retry_count'),
    labels: JSON.parse(textOrNull(row, 'labels') ?? '{}') as Record<string, string>,
    estimated_cost: integer(row, 'estimated_cost_micros') / MICROS,
    created_at: iso(integer(row, 'created_at')),
    run_at: iso(wantedRunAt(integer(row, 'run_at'))),
    awaits_artifacts: isHeld(integer(row, 'run_at')) && row.state === 'PENDING',
    started_at: time(row, 'started_at'),
    finished_at: time(row, 'finished_at'),
    cancel_requested_at: time(row, 'cancel_requested_at'),
    replaces_job_id: textOrNull(row, 'replaces_job_id'),
    definition: textOrNull(row, 'definition'),
    scheduled_for: time(row, 'scheduled_for'),
    error,
  }
}

function renderRun(row: Row): RunShape {
  return {
    run_id: text(row, 'id'),
    run_no: integer(row, 'run_no'),
    state: text(row, 'state') as JobState,
    version: integer(row, 'version'),
    attempt: integer(row, 'attempt'),
    retry_count: integer(row, 'retry_count'),
    run_at: iso(wantedRunAt(integer(row, 'run_at'))),
    created_at: iso(integer(row, 'created_at')),
    assigned_worker_id: textOrNull(row, 'assigned_worker_id'),
    assigned_at: time(row, 'assigned_at'),
    lease_expires_at: time(row, 'lease_expires_at'),
    started_at: time(row, 'started_at'),
    finished_at: time(row, 'finished_at'),
    continuation_state: text(row, 'continuation_state') === 'CONFIRMING' ? 'CONFIRMING' : 'NONE',
    continuation_check_deadline_at: time(row, 'continuation_check_deadline_at'),
    cancel_requested_at: time(row, 'cancel_requested_at'),
    error: errorOf(row),
  }
}

function toPolicyShape({ backoff, ...policy }: JobPolicy): Record<string, unknown> {
  return backoff === undefined ? policy : { ...policy, backoff: toBackoffShape(backoff) }
}

export function renderDetail(
  { job, runs, key }: JobRows,
  waitingFor: WaitingForShape | null,
  once: PromiseCounts,
): JobDetail {
  return {
    ...renderJob(job, errorOf(job)),
    payload: JSON.parse(text(job, 'payload')) as unknown,
    policy: toPolicyShape(JSON.parse(text(job, 'policy')) as JobPolicy),
    traceparent: textOrNull(job, 'traceparent'),
    idempotency_key: key,
    trigger_id: textOrNull(job, 'trigger_id'),
    waiting_for: waitingFor,
    runs: runs.map(renderRun),
    once: {
      duplicates_refused: once.duplicatesRefused,
      replays_served: once.replaysServed,
      stale_writes_fenced: once.staleWritesFenced,
      reassignments: reassignments(runs.map((run) => integer(run, 'attempt'))),
    },
  }
}

/** How often a run went to another worker before it started, from the last attempt of each run. */
function reassignments(attempts: readonly number[]): number {
  return attempts.reduce((sum, attempt, i) => sum + Math.max(0, attempt - (attempts[i - 1] ?? 0) - 1), 0)
}
