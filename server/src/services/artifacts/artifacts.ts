import type { Readable } from 'node:stream'
import { type ArtifactShape, IchidoError } from '@ichido/sdk/protocol'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import { ARTIFACTS_PER_JOB_MAX, type ByteRange, OUTPUTS_PER_RUN_MAX } from '../../core/run/artifact.ts'
import { type Artifact, findArtifact, holdsLease, listArtifacts } from '../../store/artifacts/artifacts.ts'
import { findJobs } from '../../store/jobs/read-jobs.ts'
import { notFound, requireId } from '../answers.ts'
import { blobsOf, type Deps } from '../deps.ts'
import { createUpload, receivedOf, renderArtifact, type Uploaded, type UploadRequest } from './upload-artifact.ts'

/** A user, or a worker that reads files of the jobs that it holds. */
export type Reader = { caller: Caller } | { workerId: string }

export interface FoundArtifact {
  artifact: ArtifactShape
  sizeBytes: number
  sha256: string
  open(range: ByteRange | null): Promise<Readable>
}

export interface ArtifactService {
  upload(sender: Reader, request: UploadRequest): Promise<Uploaded>
  /** The artifact, and how many of its bytes have arrived. */
  progress(reader: Reader, artifactId: string): Promise<{ artifact: ArtifactShape; receivedBytes: number }>
  find(reader: Reader, artifactId: string): Promise<FoundArtifact>
  ofJob(reader: Reader, jobId: string): Promise<ArtifactShape[]>
}

const LISTED_MAX = ARTIFACTS_PER_JOB_MAX + 10 * OUTPUTS_PER_RUN_MAX

export function createArtifactService(deps: Deps): ArtifactService {
  const { store } = deps

  async function isVisible(reader: Reader, userId: string, jobId: string | null): Promise<boolean> {
    if ('workerId' in reader) return jobId !== null && store.read(holdsLease(reader.workerId, jobId))
    return mayRead(reader.caller, userId)
  }

  async function visible(reader: Reader, artifactId: string): Promise<Artifact> {
    requireId('artifact', artifactId)
    const found = await store.read(findArtifact(artifactId))
    if (found === null || !(await isVisible(reader, found.userId, found.jobId))) throw notFound('artifact', artifactId)
    return found
  }

  return {
    upload: createUpload(deps),

    async progress(reader, artifactId) {
      const found = await visible(reader, artifactId)
      const received = found.state === 'ready' ? found.sizeBytes : await receivedOf(blobsOf(deps), artifactId)
      return { artifact: renderArtifact(found), receivedBytes: received ?? 0 }
    },

    async find(reader, artifactId) {
      const found = await visible(reader, artifactId)
      const { state, sha256, blobId, sizeBytes } = found
      if (state !== 'ready' || sha256 === null || blobId === null || sizeBytes === null) {
        throw new IchidoError('ARTIFACT_NOT_READY', `Artifact ${artifactId} has not been sent yet`)
      }
      const blobs = blobsOf(deps)
      return {
        artifact: renderArtifact(found),
        sizeBytes,
        sha256,
        open: (range) => blobs.read({ sha256, blobId }, range),
      }
    },

    async ofJob(reader, jobId) {
      requireId('job', jobId)
      const [job] = await store.read(findJobs([jobId]))
      if (job === undefined || !(await isVisible(reader, job.user_id, jobId))) throw notFound('job', jobId)
      return (await store.read(listArtifacts(jobId, LISTED_MAX))).map(renderArtifact)
    },
  }
}
