import type { ArtifactShape } from '../protocol/index.ts'
import type { Transport, UploadOptions } from './transport.ts'
import { worded } from './wording.ts'

/** Files that jobs need or make. */
export class Artifacts {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /**
   * Sends a file in parts, and continues an interrupted upload. A `File` of a page, or in Node `await openAsBlob(path)`, is
   * read while it is sent.
   *
   * @example
   * const job = await client.submit('train', null, { artifacts: [{ name: 'data.tar' }] })
   * const onProgress = ({ sentBytes, totalBytes }) => console.log(sentBytes / totalBytes)
   * await client.artifacts.upload(await openAsBlob('data.tar'), { name: 'data.tar', jobId: job.id, onProgress })
   */
  upload(bytes: Blob | Uint8Array, options: UploadOptions): Promise<ArtifactShape> {
    const blob = bytes instanceof Blob ? bytes : new Blob([new Uint8Array(bytes)])
    return worded(this.#transport.upload(blob, options))
  }

  /** Lists the files that a job waits for, was given and has made. */
  list(jobId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ArtifactShape[]> {
    return this.#transport.artifacts(jobId, signal)
  }

  /** Streams the bytes of a file. */
  download(artifactId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ReadableStream<Uint8Array>> {
    return this.#transport.download(artifactId, signal)
  }
}
