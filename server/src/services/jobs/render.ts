import type { JobDetail, JobShape, RunErrorShape, RunShape, WaitingForShape } from '@ichido/sdk/protocol'
import { clip } from '../../core/json/text.ts'
import { MICROS } from '../../core/limits/quota.ts'
import { isHeld, wantedRunAt } from '../../core/run/artifact.ts'
import { type JobPolicy, toBackoffShape } from '../../core/run/job.ts'
import type { JobWithRuns, ListedJob, ShownRun } from '../../store/jobs/read-jobs.ts'
import type { PromiseCounts } from '../../store/system/promise-counters.ts'
import { iso, isoOrNull } from '../answers.ts'

/** A list has up to 200 errors, so their messages are cut. The detail of a job has the whole message. */
export const LISTED_MESSAGE_MAX = 1_000

export function renderListed(job: ListedJob): JobShape {
  const { error } = job
  return renderJob(job, error && { code: error.code, message: clip(error.message, LISTED_MESSAGE_MAX) })
}

function renderJob(job: ListedJob, error: RunErrorShape | null): JobShape {
  return {
    job_id: job.job_id,
    kind: job.kind,
    queue: job.queue,
    user_id: job.user_id,
    state: job.state,
    priority: job.priority,
    attempt: job.attempt,
    retry_count: job.retry_count,
    labels: job.labels ?? {},
    estimated_cost: job.estimated_cost_micros / MICROS,
    created_at: iso(job.created_at),
    run_at: iso(wantedRunAt(job.run_at)),
    awaits_artifacts: isHeld(job.run_at) && job.state === 'PENDING',
    started_at: isoOrNull(job.started_at),
    finished_at: isoOrNull(job.finished_at),
    cancel_requested_at: isoOrNull(job.cancel_requested_at),
    replaces_job_id: job.replaces_job_id,
    definition: job.definition,
    scheduled_for: isoOrNull(job.scheduled_for),
    error,
  }
}

function renderRun(run: ShownRun): RunShape {
  return {
    run_id: run.id,
    run_no: run.run_no,
    state: run.state,
    version: run.version,
    attempt: run.attempt,
    retry_count: run.retry_count,
    run_at: iso(wantedRunAt(run.run_at)),
    created_at: iso(run.created_at),
    assigned_worker_id: run.assigned_worker_id,
    assigned_at: isoOrNull(run.assigned_at),
    lease_expires_at: isoOrNull(run.lease_expires_at),
    started_at: isoOrNull(run.started_at),
    finished_at: isoOrNull(run.finished_at),
    continuation_state: run.continuation_state === 'CONFIRMING' ? 'CONFIRMING' : 'NONE',
    continuation_check_deadline_at: isoOrNull(run.continuation_check_deadline_at),
    cancel_requested_at: isoOrNull(run.cancel_requested_at),
    error: run.error,
  }
}

function toPolicyShape({ backoff, ...policy }: JobPolicy): Record<string, unknown> {
  return backoff === undefined ? policy : { ...policy, backoff: toBackoffShape(backoff) }
}

export function renderDetail(
  { job, runs, key }: JobWithRuns,
  waitingFor: WaitingForShape | null,
  once: PromiseCounts,
): JobDetail {
  return {
    ...renderJob(job, job.error),
    payload: JSON.parse(job.payload) as unknown,
    policy: toPolicyShape(job.policy),
    traceparent: job.traceparent,
    idempotency_key: key,
    trigger_id: job.trigger_id,
    waiting_for: waitingFor,
    runs: runs.map(renderRun),
    once: {
      duplicates_refused: once.duplicatesRefused,
      replays_served: once.replaysServed,
      stale_writes_fenced: once.staleWritesFenced,
      reassignments: reassignments(runs.map(({ attempt }) => attempt)),
    },
  }
}

/** How often a run went to another worker before it started, from the last attempt of each run. */
function reassignments(attempts: readonly number[]): number {
  return attempts.reduce((sum, attempt, i) => sum + Math.max(0, attempt - (attempts[i - 1] ?? 0) - 1), 0)
}
