import { hold } from '../../core/artifact.ts'
import { insertHeldRuns, insertInputs, shareOwnBlobs } from '../sql/artifacts.ts'
import { each, integer, type SqlValue, text, type Work } from '../statement.ts'

/** What a job lists, and how long the next chunk of it may take. */
export interface AwaitedArtifacts {
  uploadTtlMs: number
  list: readonly { artifactId: string; name: string; sha256: string | null; sizeBytes: number | null }[]
}

interface Admitted {
  item: { jobId: string; runId: string; userId: string; artifacts?: AwaitedArtifacts | undefined }
  runAtMs: number
}

/**
 * Writes down what the jobs of a submission wait for, and holds back the runs of those that lack something. What their
 * users have sent before is there already. Without artifacts it asks for nothing.
 */
export function* holdBack<A extends Admitted>(admitted: A[]): Work<A[]> {
  const wanting = admitted.filter(({ item }) => item.artifacts !== undefined)
  if (wanting.length === 0) return admitted
  const own = yield* ownBlobs(wanting)
  const inputs: SqlValue[][] = []
  const held = new Map<Admitted, number>()
  for (const one of wanting) {
    const { jobId, userId, artifacts } = one.item
    for (const { artifactId, name, sha256, sizeBytes } of artifacts?.list ?? []) {
      const blob = own.get(nameOf(userId, sha256))
      const fits = blob !== undefined && (sizeBytes === null || sizeBytes === blob.sizeBytes)
      if (!fits) held.set(one, artifacts?.uploadTtlMs ?? 0)
      const size = fits ? blob.sizeBytes : sizeBytes
      inputs.push([artifactId, jobId, userId, name, sha256, size, fits ? blob.blobId : null])
    }
  }
  yield* each(insertInputs, inputs)
  yield* each(
    insertHeldRuns,
    [...held].map(([{ item }, ttlMs]) => [item.runId, item.jobId, ttlMs]),
  )
  return admitted.map((one) => (held.has(one) ? { ...one, runAtMs: hold(one.runAtMs) } : one))
}

function* ownBlobs(wanting: readonly Admitted[]): Work<Map<string, { blobId: string; sizeBytes: number }>> {
  const wanted = new Map<string, SqlValue[]>()
  for (const { item } of wanting) {
    for (const { sha256 } of item.artifacts?.list ?? []) {
      if (sha256 !== null) wanted.set(nameOf(item.userId, sha256), [item.userId, sha256])
    }
  }
  const rows = yield* each(shareOwnBlobs, [...wanted.values()])
  return new Map(
    rows.map((row) => [
      nameOf(text(row, 'user_id'), text(row, 'sha256')),
      { blobId: text(row, 'blob_id'), sizeBytes: integer(row, 'size_bytes') },
    ]),
  )
}

function nameOf(userId: string, sha256: string | null): string {
  return JSON.stringify([userId, sha256])
}
