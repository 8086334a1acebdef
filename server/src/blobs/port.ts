import type { Readable } from 'node:stream'
import type { ByteRange } from '../core/run/artifact.ts'

/** Names bytes that are in their place: what they are, and which copy of it this is. */
export interface BlobName {
  sha256: string
  blobId: string
}

export interface Received {
  /** `whole`: the source came to its end; `cut`: it broke off; `over`: it had more bytes than it may. */
  end: 'whole' | 'cut' | 'over'
  /** How much of the upload is here now, counted from its beginning. */
  bytes: number
}

/** All of an upload, synced to disk, and not yet in its place. */
export interface Sealed {
  sha256: string
  sizeBytes: number
  file: string
}

/** An upload that goes on in one request. */
export interface Receiving {
  /**
   * Takes in what the source gives; what has arrived stays, unless the disk is full: then the room it took is given back.
   * `onBytes` may throw to end it.
   */
  take(source: AsyncIterable<Uint8Array>, bytesMax: number, onBytes: () => Promise<void>): Promise<Received>
  seal(): Promise<Sealed>
}

/**
 * Where the bytes of artifacts are; what they are the bytes of is the store's to say. A blob is put in its place first and
 * then named by a row, and its row is removed first and then its bytes: there is never a row without them.
 */
export interface Blobs {
  /** How much of an upload is here, counted from its beginning without a gap. */
  received(uploadId: string): Promise<number>
  /** Goes on with an upload at its end (`fromByte` is what `received` says), or begins it anew at 0. */
  receive(uploadId: string, fromByte: number): Promise<Receiving>
  /** Puts the bytes under their name, for good. */
  place(sealed: Sealed, blobId: string): Promise<void>
  /** Forgets an upload. */
  discard(uploadId: string): Promise<void>
  read(name: BlobName, range: ByteRange | null): Promise<Readable>
  remove(name: BlobName): Promise<void>
  /** The ids of all uploads that are here, finished or not, a batch at a time. */
  uploads(batchMax: number): AsyncIterable<string[]>
  /** Blobs in one of `SHARDS` parts of the place that have been there for this long. */
  oldBlobs(shard: number, ageMs: number): Promise<BlobName[]>
  /** Throws `StoreFull` unless there is room for a small file. It leaves nothing behind. */
  requireRoom(): Promise<void>
}

export const SHARDS = 256

/** The bytes that a row names are not where they should be. */
export class BlobMissing extends Error {
  override readonly name = 'BlobMissing'
}

/** Somebody began the upload anew, or it was given up, while this request was at it. */
export class UploadGone extends Error {
  override readonly name = 'UploadGone'
}

/** An upload came in more parts than can be put together. */
export class TooManyParts extends Error {
  override readonly name = 'TooManyParts'
}
