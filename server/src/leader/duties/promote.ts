import { promoteDue } from '../../store/leasing/promote-runs.ts'
import { type MakerDeps, wakeQueues } from '../election/batches.ts'

/** Moves delayed runs into their queues when they are due. Any node may do it, and several at once do no harm. */
export function createPromote({
  store,
  bus,
  fairTags,
  settings,
}: Pick<MakerDeps, 'store' | 'bus' | 'fairTags' | 'settings'>): () => Promise<number | null> {
  return async () => {
    const batchMax = settings.get('promote_batch_max')
    const { promoted, nextInMs } = await fairTags.learnFrom(
      (leased) => store.write(promoteDue(batchMax, leased)),
      ({ promoted }) => promoted,
    )
    wakeQueues(bus, promoted)
    return promoted.length === batchMax ? 0 : nextInMs
  }
}
