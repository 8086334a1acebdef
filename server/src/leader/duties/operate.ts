import { runningOperations } from '../../store/operations/operations.ts'
import { stepOperation } from '../../store/operations/step.ts'
import type { Term } from '../../store/system/term.ts'
import type { MakerDeps } from '../election/batches.ts'

const OPERATIONS_MAX = 100
/** A step waits at most this long, so that a clock that was set back does not stop an operation. */
const PAUSE_MAX_MS = 2_000

/** Continues every running operation by one bounded step. Two nodes at once would do no harm. */
export function createOperate(
  { world, store, bus, meter, settings, fairTags }: MakerDeps,
  term: Term,
): () => Promise<number | null> {
  async function step(operationId: string, version: number): Promise<void> {
    const nextRunIds = Array.from({ length: settings.get('operation_batch_max') }, () => world.uuid())
    const item = { operationId, version, nextRunIds, auditId: world.uuid() }
    const { action, retried, canceled, requested } = await fairTags.learnFrom(
      (leased) => store.write(stepOperation(term, { ...item, leased })),
      ({ retried }) => retried.flatMap(({ ready }) => ready ?? []),
    )
    for (const { parkedMs, queue } of retried) {
      meter.retried(action === 'redrive' ? 'redrive' : 'person', queue)
      if (parkedMs !== null) meter.deadLetterResolved(action === 'redrive' ? 'redriven' : 'retried', parkedMs)
    }
    for (const { queue, kind } of canceled) meter.ended('CANCELED', 0, queue, kind)
    const topics = [
      ...retried.flatMap(({ queue, jobId }) => [`queue:${queue}` as const, `job:${jobId}` as const]),
      ...canceled.map(({ jobId }) => `job:${jobId}` as const),
      ...requested.flatMap(({ jobId, workerId }) => [`job:${jobId}` as const, `worker:${workerId}` as const]),
    ]
    if (topics.length > 0) bus.wake([...new Set(topics)])
  }

  return async () => {
    const running = await store.read(runningOperations(OPERATIONS_MAX))
    const due = running.filter(({ inMs }) => inMs <= 0 || inMs > PAUSE_MAX_MS)
    const failures: unknown[] = []
    // An operation that fails, for example on a locked user, does not delay the others.
    for (const { operationId, version } of due) await step(operationId, version).catch((error) => failures.push(error))
    if (failures.length > 0) throw failures[0]
    if (due.length > 0) return 0
    return running[0]?.inMs ?? null
  }
}
