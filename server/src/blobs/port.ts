import type { Readable } from 'node:stream'
import type { ByteRange } from '../core/run/artifact.ts'

/** Names stored bytes: their hash, and which copy of them. */
export interface BlobName {
  sha256: string
  blobId: string
}

export interface Received {
  /** `whole`: the source ended; `cut`: the source failed; `over`: the source had more bytes than allowed. */
  end: 'whole' | 'cut' | 'over'
  /** Bytes of the upload that have arrived, counted from its beginning. */
  bytes: number
}

/** A complete upload that is synced to disk, but not yet stored under its name. */
export interface Sealed {
  sha256: string
  sizeBytes: number
  file: string
}

/** One request of an upload. */
export interface Receiving {
  /**
   * Reads the source. The bytes that arrived are kept, unless the disk is full: then they are removed. `onBytes` may
   * throw to stop the upload.
   */
  take(source: AsyncIterable<Uint8Array>, bytesMax: number, onBytes: () => Promise<void>): Promise<Received>
  seal(): Promise<Sealed>
}

/**
 * Keeps the bytes of artifacts. The store knows which artifact they belong to. A blob is stored before a row names it,
 * and the row is removed before the blob. So every row has its bytes.
 */
export interface Blobs {
  /** Bytes of an upload that have arrived without a gap, counted from its beginning. */
  received(uploadId: string): Promise<number>
  /** Continues an upload at its end (`fromByte` equals `received`), or restarts it at 0. */
  receive(uploadId: string, fromByte: number): Promise<Receiving>
  /** Stores the bytes durably under their name. */
  place(sealed: Sealed, blobId: string): Promise<void>
  /** Removes an upload. */
  discard(uploadId: string): Promise<void>
  read(name: BlobName, range: ByteRange | null): Promise<Readable>
  remove(name: BlobName): Promise<void>
  /** Lists the ids of all uploads, complete or not, in batches. */
  uploads(batchMax: number): AsyncIterable<string[]>
  /** Blobs of one of `SHARDS` subfolders that are at least this old. */
  oldBlobs(shard: number, ageMs: number): Promise<BlobName[]>
  /** Throws `StoreFull` unless there is room for a small file. It leaves nothing behind. */
  requireRoom(): Promise<void>
}

export const SHARDS = 256

/** The bytes that a row names are missing. */
export class BlobMissing extends Error {
  override readonly name = 'BlobMissing'
}

/** Another request restarted or discarded the upload meanwhile. */
export class UploadGone extends Error {
  override readonly name = 'UploadGone'
}

/** The upload has too many parts. */
export class TooManyParts extends Error {
  override readonly name = 'TooManyParts'
}
