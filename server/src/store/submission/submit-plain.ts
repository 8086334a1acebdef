import type { FastPath } from '../port.ts'
import { eachStep, readRows, type Values } from '../statement.ts'
import { created, type RenderAccepted, type SubmitItem, type SubmitOutcome, submissionName } from './submission.ts'
import { NOW_PLACE, type PLAIN_PARAMS, submitPlain } from './submit.sql.ts'

/**
 * Most submissions are plain: due now, under a new key, of a user without limits. One statement and one round trip store a batch
 * of them. The general path needs five round trips.
 */
export function plainSubmit(
  items: readonly SubmitItem[],
  render: RenderAccepted,
): FastPath<SubmitOutcome[]> | undefined {
  const plain = plainSubmission(items, render)
  if (plain === undefined) return undefined
  return {
    step: eachStep(submitPlain, plain.rows),
    settle(rows) {
      const [written] = readRows(submitPlain, rows)
      return written === undefined ? null : plain.outcomes(written.iso, true)
    },
  }
}

/** The rows to write, and their outcomes at the instant of the store; undefined when one of the items is not plain. */
export function plainSubmission(items: readonly SubmitItem[], render: RenderAccepted) {
  if (!arePlain(items)) return undefined
  const bodyAt = ({ jobId, kind, queue }: SubmitItem, at: string) =>
    render({ jobId, kind, queue, createdAt: at, runAt: at, quotaWarnings: [], costLimitWarning: null })
  return {
    // The body is stored with the key only.
    rows: items.map((item) => plainRow(item, item.key === null ? '' : bodyAt(item, NOW_PLACE))),
    outcomes: (iso: string, due: boolean): SubmitOutcome[] =>
      items.map((item) => created(item, bodyAt(item, iso), due)),
  }
}

/** As far as that is known without the store. */
export function arePlain(items: readonly SubmitItem[]): boolean {
  const names = new Set<string>()
  let keyed = 0
  for (const item of items) {
    if (!isPlain(item)) return false
    if (item.key === null) continue
    keyed++
    names.add(submissionName(item))
  }
  return names.size === keyed
}

function isPlain(item: SubmitItem): boolean {
  return (
    item.refusal === undefined &&
    item.runAtMs === null &&
    item.delayMs === 0 &&
    item.labels === null &&
    item.estimatedCostMicros === 0 &&
    item.replacesJobId === null &&
    item.reservationId === null &&
    item.consumedReservationId === null &&
    item.definition === undefined &&
    item.artifacts === undefined &&
    item.callbackUrl === undefined
  )
}

export function plainRow(item: SubmitItem, body: string): Values<typeof PLAIN_PARAMS> {
  const { key } = item
  return {
    job_id: item.jobId,
    kind: item.kind,
    queue: item.queue,
    user_id: item.userId,
    payload: item.payload,
    policy: JSON.stringify(item.policy),
    priority: item.priority,
    traceparent: item.traceparent,
    idempotency_key: key?.key ?? null,
    operation: key?.operation ?? null,
    request_hash: key?.requestHash ?? null,
    response_body: key === null ? null : body,
    ttl_ms: key?.ttlMs ?? null,
    fair_tag: item.fairTag,
  }
}
