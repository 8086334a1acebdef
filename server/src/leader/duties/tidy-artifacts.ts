import { type Blobs, SHARDS } from '../../blobs/port.ts'
import { isUuid } from '../../contract/common.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import type { Deps } from '../../services/deps.ts'
import {
  cancelOverdue,
  deleteExpiredArtifacts,
  findAwaited,
  findBlobs,
  forgetUnnamedBlobs,
} from '../../store/artifacts/tidy-artifacts.ts'

/** A blob is older than this only if it will never be named. */
const STRAY_AGE_MS = 24 * 3600 * 1000

type UploadOptions = Pick<Deps, 'store' | 'bus' | 'meter' | 'settings'>

/**
 * Cancels jobs whose artifacts do not arrive, and frees their slots. Any node may do it, and several at once do no
 * harm.
 */
export function createExpireUploads({ store, bus, meter, settings }: UploadOptions): () => Promise<number | null> {
  return async () => {
    const batchMax = settings.get('uploads_batch_max')
    const { seen, canceledJobIds, ended } = await store.write(cancelOverdue(batchMax))
    for (const { queue, kind } of ended) meter.ended('CANCELED', 0, queue, kind)
    bus.wake(canceledJobIds.map((jobId) => `job:${jobId}` as const))
    return seen === batchMax ? 0 : null
  }
}

type TidyOptions = Pick<Deps, 'store' | 'settings'> & { blobs: Blobs }

/**
 * Removes abandoned uploads, blobs that no artifact names, and files of a node that died before it named them. Each
 * turn checks a part.
 */
export function createTidyArtifacts({ store, blobs, settings }: TidyOptions): () => Promise<number | null> {
  const batchMax = () => settings.get('artifacts_batch_max')
  let after = FIRST_ID
  let shard = 0

  async function discardUploads(): Promise<void> {
    for await (const names of blobs.uploads(batchMax())) {
      const awaited = await store.read(findAwaited(names.filter(isUuid)))
      for (const name of names) if (!awaited.has(name)) await blobs.discard(name)
    }
  }

  async function removeUnnamed(): Promise<void> {
    const { removed, next } = await store.write(forgetUnnamedBlobs(after, batchMax()))
    for (const name of removed) await blobs.remove(name)
    after = next ?? FIRST_ID
  }

  async function removeStrays(): Promise<void> {
    const old = (await blobs.oldBlobs(shard, STRAY_AGE_MS)).filter(({ blobId }) => isUuid(blobId))
    const known = await store.read(findBlobs(old.map(({ blobId }) => blobId)))
    for (const name of old) if (!known.has(name.blobId)) await blobs.remove(name)
    shard = (shard + 1) % SHARDS
  }

  return async () => {
    const max = batchMax()
    const expired = await store.write(deleteExpiredArtifacts(max))
    await discardUploads()
    await removeUnnamed()
    await removeStrays()
    return expired === max ? 0 : null
  }
}
