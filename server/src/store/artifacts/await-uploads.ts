import { hold } from '../../core/run/artifact.ts'
import { each, type ParamsOf, type Work } from '../statement.ts'
import { insertHeldRuns, insertInputs, shareOwnBlobs } from './artifacts.sql.ts'

/** What a job lists, and how long the next chunk of it may take. */
export interface AwaitedArtifacts {
  uploadTtlMs: number
  list: readonly { artifactId: string; name: string; sha256: string | null; sizeBytes: number | null }[]
}

interface Item {
  userId: string
  artifacts?: AwaitedArtifacts | undefined
}

interface Admitted {
  item: Item & { jobId: string; runId: string }
  runAtMs: number
}

/**
 * Writes down what the jobs of a submission wait for, and holds back the runs of those that lack something. What their
 * users have sent before is there already. Without artifacts it asks for nothing.
 */
export function* awaitUploads<A extends Admitted>(admitted: A[], own: OwnBlobs): Work<A[]> {
  const wanting = admitted.filter(({ item }) => item.artifacts !== undefined)
  if (wanting.length === 0) return admitted
  const inputs: ParamsOf<typeof insertInputs>[] = []
  const held = new Map<Admitted, number>()
  for (const one of wanting) {
    const { jobId, userId, artifacts } = one.item
    for (const { artifactId, name, sha256, sizeBytes } of artifacts?.list ?? []) {
      const blob = fitting(own, userId, sha256, sizeBytes)
      if (blob === undefined) held.set(one, artifacts?.uploadTtlMs ?? 0)
      inputs.push({
        artifact_id: artifactId,
        job_id: jobId,
        user_id: userId,
        name,
        sha256,
        size_bytes: blob?.sizeBytes ?? sizeBytes,
        blob_id: blob?.blobId ?? null,
      })
    }
  }
  yield* each(insertInputs, inputs)
  yield* each(
    insertHeldRuns,
    [...held].map(([{ item }, ttlMs]) => ({ run_id: item.runId, job_id: item.jobId, upload_ttl_ms: ttlMs })),
  )
  return admitted.map((one) => (held.has(one) ? { ...one, runAtMs: hold(one.runAtMs) } : one))
}

function fitting(own: OwnBlobs, userId: string, sha256: string | null, sizeBytes: number | null) {
  const blob = own.get(nameOf(userId, sha256))
  return blob === undefined || (sizeBytes !== null && sizeBytes !== blob.sizeBytes) ? undefined : blob
}

/** What is stored when it is accepted: an artifact that is still to come is counted when it is there. */
export function bytesOf({ userId, payload, artifacts }: Item & { payload: string }, own: OwnBlobs): number {
  const sizes = artifacts?.list.map(({ sha256, sizeBytes }) => fitting(own, userId, sha256, sizeBytes)?.sizeBytes ?? 0)
  return (sizes ?? []).reduce((sum, size) => sum + size, Buffer.byteLength(payload))
}

/** By user and hash. */
export type OwnBlobs = ReadonlyMap<string, { blobId: string; sizeBytes: number }>

/** What the users of these have sent before. Without artifacts it asks for nothing. */
export function* ownBlobs(items: readonly Item[]): Work<OwnBlobs> {
  const wanted = new Map<string, ParamsOf<typeof shareOwnBlobs>>()
  for (const item of items) {
    for (const { sha256 } of item.artifacts?.list ?? []) {
      if (sha256 !== null) wanted.set(nameOf(item.userId, sha256), { user_id: item.userId, sha256 })
    }
  }
  const rows = yield* each(shareOwnBlobs, [...wanted.values()])
  return new Map(
    rows.map((row) => [nameOf(row.user_id, row.sha256), { blobId: row.blob_id, sizeBytes: row.size_bytes }]),
  )
}

function nameOf(userId: string, sha256: string | null): string {
  return JSON.stringify([userId, sha256])
}
