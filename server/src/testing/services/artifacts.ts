import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { AwaitedArtifactShape } from '@ichido/sdk/protocol'
import { afterAll, beforeAll } from 'vitest'
import { openDisk } from '../../blobs/disk.ts'
import type { Blobs } from '../../blobs/port.ts'
import type { SubmitInput } from '../../contract/submit.ts'
import type { Caller } from '../../core/limits/roles.ts'
import { createTidyArtifacts } from '../../leader/duties/tidy-artifacts.ts'
import { realWorld } from '../../node/world.ts'
import type { Uploaded, UploadRequest } from '../../services/artifacts/upload-artifact.ts'
import { DEFAULT_LIMITS } from '../../services/deps.ts'
import type { Services } from '../../services/index.ts'
import { promoteDue } from '../../store/leasing/promote-runs.ts'
import { type TestApp, testApp } from '../http/app.ts'
import { sql, unique } from '../store/store.ts'
import { callerOf, eachServices } from './each-services.ts'
import type { Engine } from './services.ts'

export const sha256Of = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

export const someBytes = (length: number): Buffer => randomBytes(length)

export interface TestFolder {
  folder: string
  remove(): void
}

export function testFolder(): TestFolder {
  const folder = mkdtempSync(join(tmpdir(), 'ichido-artifacts-'))
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) }
}

export async function testBlobs(): Promise<TestFolder & { blobs: Blobs }> {
  const place = testFolder()
  return { ...place, blobs: await openDisk({ folder: place.folder, world: realWorld }) }
}

/** The HTTP layer with an artifact folder, which is removed on close. */
export async function artifactApp(engine: Engine): Promise<TestApp> {
  const { blobs, remove } = await testBlobs()
  const http = await testApp(engine, { deps: { blobs } })
  return {
    ...http,
    async close() {
      await http.close()
      remove()
    },
  }
}

/** Chunks as a socket delivers them. It breaks after `breakAfter` chunks. */
export async function* chunksOf(bytes: Uint8Array, chunkBytes = 65_536, breakAfter = Number.POSITIVE_INFINITY) {
  let count = 0
  for (let at = 0; at < bytes.length; at += chunkBytes) {
    if (count++ === breakAfter) throw new Error('The sender is gone')
    yield bytes.subarray(at, at + chunkBytes)
  }
}

export function uploadRequest(
  bytes: Uint8Array | AsyncIterable<Uint8Array>,
  changes: Partial<UploadRequest> = {},
): UploadRequest {
  return {
    name: 'input.bin',
    jobId: null,
    leaseId: null,
    sha256: null,
    sizeBytes: null,
    fromByte: null,
    contentLength: null,
    source: bytes instanceof Uint8Array ? chunksOf(bytes) : bytes,
    ...changes,
  }
}

export const ARTIFACT_BYTES_MAX = 200_000

interface ArtifactServices {
  services(): Services
  submitter(): Caller
  /** Submits a job in its own queue that waits for these artifacts, and returns its id. */
  submit(caller: Caller, artifacts: AwaitedArtifactShape[], input?: Partial<SubmitInput>): Promise<string>
  send(caller: Caller, jobId: string | null, bytes: Uint8Array, changes?: Partial<UploadRequest>): Promise<Uploaded>
  job(caller: Caller, jobId: string): ReturnType<Services['jobs']['get']>
  /** Whether a worker could lease the job after all due runs were promoted. */
  leasable(jobId: string): Promise<boolean>
  tidy(): Promise<unknown>
  /** The files that contain these bytes. */
  fileOf(bytes: Uint8Array): string[]
  /** The files of unfinished uploads. */
  uploads(): string[]
}

/** Like `eachServices`, with a folder for artifacts of up to `ARTIFACT_BYTES_MAX`. */
export function eachArtifactServices(suite: (given: ArtifactServices) => void): void {
  const limits = { ...DEFAULT_LIMITS, artifactBytesMax: ARTIFACT_BYTES_MAX }
  eachServices(
    ({ services, submit }) => {
      let place: Awaited<ReturnType<typeof testBlobs>>
      beforeAll(async () => {
        place = await testBlobs()
        services().deps.blobs = place.blobs
      })
      afterAll(() => place.remove())
      suite({
        services,
        submitter: () => callerOf('submitter'),
        submit: (caller, artifacts, input = {}) => submit(caller, { queue: unique('queue'), ...input, artifacts }),
        send: (caller, jobId, bytes, changes = {}) =>
          services().artifacts.upload({ caller }, uploadRequest(bytes, { jobId, ...changes })),
        job: (caller, jobId) => services().jobs.get(caller, jobId),
        async leasable(jobId) {
          const { store } = services().deps
          await store.write(promoteDue(1_000, []))
          const statement = 'SELECT fair_tag FROM ichido.runs WHERE job_id = $1 AND fair_tag IS NOT NULL'
          return (await sql(store, statement, jobId)).length === 1
        },
        tidy: () => createTidyArtifacts({ ...services().deps, blobs: place.blobs })(),
        fileOf: (bytes) =>
          readdirSync(join(place.folder, 'blobs'), { recursive: true, encoding: 'utf8' }).filter(
            (file) => file.includes('.') && file.includes(sha256Of(bytes)),
          ),
        uploads: () => readdirSync(join(place.folder, 'uploads')),
      })
    },
    { limits },
  )
}
