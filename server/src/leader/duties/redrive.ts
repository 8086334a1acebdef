import { runningRedrives, stepRedrive } from '../../store/dead-letters/redrive.ts'
import type { Term } from '../../store/system/term.ts'
import type { MakerDeps } from '../election/batches.ts'

const REDRIVES_MAX = 100
/** A step waits at most this long, so that a clock that was set back does not stop a redrive. */
const PAUSE_MAX_MS = 2_000

/** Continues every running redrive by one bounded step. Two nodes at once would do no harm. */
export function createRedrive(
  { world, store, bus, meter, settings, fairTags }: MakerDeps,
  term: Term,
): () => Promise<number | null> {
  async function step(redriveId: string, version: number): Promise<void> {
    const nextRunIds = Array.from({ length: settings.get('redrive_batch_max') }, () => world.uuid())
    const item = { redriveId, version, nextRunIds, auditId: world.uuid() }
    const { retried } = await fairTags.learnFrom(
      (leased) => store.write(stepRedrive(term, { ...item, leased })),
      ({ retried }) => retried.flatMap(({ ready }) => ready ?? []),
    )
    for (const { parkedMs, queue } of retried) {
      meter.retried('redrive', queue)
      if (parkedMs !== null) meter.deadLetterResolved('redriven', parkedMs)
    }
    bus.wake([...new Set(retried.flatMap(({ queue, jobId }) => [`queue:${queue}` as const, `job:${jobId}` as const]))])
  }

  return async () => {
    const running = await store.read(runningRedrives(REDRIVES_MAX))
    const due = running.filter(({ inMs }) => inMs <= 0 || inMs > PAUSE_MAX_MS)
    const failures: unknown[] = []
    // A redrive that fails, for example on a locked user, does not delay the others.
    for (const { redriveId, version } of due) await step(redriveId, version).catch((error) => failures.push(error))
    if (failures.length > 0) throw failures[0]
    if (due.length > 0) return 0
    return running[0]?.inMs ?? null
  }
}
