import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openDisk } from '../blobs/disk.ts'
import type { Blobs } from '../blobs/port.ts'
import type { UploadRequest } from '../services/upload-artifact.ts'
import { realWorld } from '../world.ts'

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

/** Chunks as a socket gives them; after `breakAfter` of them it breaks. */
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
