import { DEFAULT_QUEUE } from '@ichido/sdk/protocol'
import type { Definition } from '../../core/schedule/definition.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { giveTags, type QueueTime, type Tagged } from '../leasing/fair-tags.ts'
import { type Command, commandIn } from '../port.ts'
import type { Work } from '../statement.ts'
import type { RenderAccepted, SubmitItem, SubmitOutcome, UntaggedItem } from '../submission/submission.ts'
import { submitWork } from '../submission/submit-jobs.ts'

/** Jobs that are made of definitions, for ticks, triggers and people. */

export interface Maker {
  /** Makes ids for every try: the ledger shows whether the job was made before. */
  newId(): string
  /** The times of queues that this node has not shared yet. */
  leased: readonly QueueTime[]
}

export function definitionItem(
  { id, userId, kind, policy, priority, labels, queue: named }: Definition,
  { payload, scheduledForMs, runAtMs }: { payload: string; scheduledForMs: number | null; runAtMs: number | null },
  { newId }: Maker,
): UntaggedItem {
  const queue = named ?? DEFAULT_QUEUE
  return {
    jobId: newId(),
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

/** Returns results by job. The first item gets the first free slot. */
export function* submitUnkeyed(untagged: readonly UntaggedItem[], { leased }: Maker): Work<Map<string, MadeJob>> {
  if (untagged.length === 0) return new Map()
  const items = yield* giveTags(untagged, leased)
  // Without a key no answer is stored.
  const outcomes = yield* submitWork(items, () => '', false)
  return new Map(
    items.map((item, i) => {
      const outcome = outcomes[i]
      if (outcome === undefined) throw new Error('Every submission has an outcome')
      return [item.jobId, resultOf(item, outcome)]
    }),
  )
}

const FULL: readonly string[] = ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED']

export interface MadeJob {
  outcome: 'job' | 'skipped' | 'waiting_quota'
  reason: string | null
  jobId: string | null
  /** Its place, if the job can be leased now. */
  ready: Tagged | null
  /** The queue of a job that was made. */
  madeIn?: string
}

/** A job that its quota refuses waits. */
function resultOf({ queue, userId, priority, fairTag }: SubmitItem, outcome: SubmitOutcome): MadeJob {
  if (outcome.kind !== 'refused') {
    const ready = outcome.due ? { queue, userId, priority, fairTag } : null
    return { outcome: 'job', reason: null, jobId: outcome.jobId, ready, madeIn: queue }
  }
  const { code } = outcome.refusal
  const nothing = { reason: code.toLowerCase(), jobId: null, ready: null }
  return { ...nothing, outcome: FULL.includes(code) ? 'waiting_quota' : 'skipped' }
}

/** Submits a job, and records who asked for it. A replayed key makes neither a job nor an entry. */
export function runDefinition(name: string, item: SubmitItem, render: RenderAccepted, by: By): Command<SubmitOutcome> {
  return commandIn('users', 'run_definition', function* work(again): Work<SubmitOutcome> {
    const [outcome] = yield* submitWork([item], render, again)
    if (outcome === undefined) throw new Error('A submission has an outcome')
    if (outcome.kind === 'created' && !(yield* isRecorded(again, by))) {
      yield* record(by, 'definition.run', name, null, { job_id: outcome.jobId })
    }
    return outcome
  })
}
