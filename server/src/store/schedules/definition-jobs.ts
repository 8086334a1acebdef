import { DEFAULT_QUEUE } from '../../core/run/job.ts'
import type { Definition } from '../../core/schedule/definition.ts'
import type { TagsFor } from '../leasing/fair-tags.ts'
import type { Work } from '../statement.ts'
import { type SubmitOutcome, type UntaggedItem, withTags } from '../submission/submission.ts'
import { submitWork } from '../submission/submit-jobs.ts'

/** Jobs that the leader makes of definitions, for ticks and for triggers. */

/** Makes what a job needs: anew for every try, because the ledger tells whether its job was made before. */
export interface Maker {
  newId(): string
  tagsFor: TagsFor
}

export function definitionItem(
  { id, userId, kind, policy, priority, labels, queue: named }: Definition,
  { payload, scheduledForMs, runAtMs }: { payload: string; scheduledForMs: number | null; runAtMs: number | null },
  { newId }: Maker,
): UntaggedItem {
  const queue = named ?? DEFAULT_QUEUE
  return {
    jobId: newId(),
    runId: newId(),
    userId,
    kind,
    queue,
    payload,
    policy,
    priority,
    labels,
    estimatedCostMicros: 0,
    traceparent: null,
    replacesJobId: null,
    runAtMs,
    delayMs: 0,
    key: null,
    reservationId: null,
    consumedReservationId: null,
    definition: { id, scheduledForMs },
  }
}

/** By job. The first of the list has the first free slot. */
export function* submitUnkeyed(
  untagged: readonly UntaggedItem[],
  { tagsFor }: Maker,
): Work<Map<string, SubmitOutcome>> {
  if (untagged.length === 0) return new Map()
  const items = withTags(untagged, yield* tagsFor(untagged))
  // Nobody is answered: there is no key that an answer would be kept with.
  const outcomes = yield* submitWork(items, () => '', false)
  return new Map(
    items.map((item, i) => {
      const outcome = outcomes[i]
      if (outcome === undefined) throw new Error('Every submission has an outcome')
      return [item.jobId, outcome]
    }),
  )
}

const FULL: readonly string[] = ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED']

export interface MadeJob {
  outcome: 'job' | 'skipped' | 'waiting_quota'
  reason: string | null
  jobId: string | null
  /** The queue, when a worker can have the job now. */
  wakes: string | null
}

/** One that its quota refuses waits. */
export function resultOf(outcome: SubmitOutcome): MadeJob {
  if (outcome.kind !== 'refused') {
    return { outcome: 'job', reason: null, jobId: outcome.jobId, wakes: outcome.due ? outcome.queue : null }
  }
  const { code } = outcome.refusal
  const nothing = { reason: code.toLowerCase(), jobId: null, wakes: null }
  return { ...nothing, outcome: FULL.includes(code) ? 'waiting_quota' : 'skipped' }
}
