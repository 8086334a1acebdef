import { closeSync, fstatSync, openSync, readSync, truncateSync } from 'node:fs'

/** Reads what is appended to a file. Programs write to files, not pipes: they never wait for us, nor we for them. */
export class Tail {
  readonly #path: string
  readonly #decoder = new TextDecoder()
  #at = 0

  constructor(path: string) {
    this.#path = path
  }

  /** Up to so many bytes more; '' when there are none. Half a character waits for its other half. */
  read(bytesMax: number): string {
    const fd = openSync(this.#path, 'r')
    try {
      const { size } = fstatSync(fd)
      // Somebody wrote with > instead of >>: it begins anew.
      if (size < this.#at) this.#at = 0
      const buffer = Buffer.alloc(Math.min(bytesMax, size - this.#at))
      const bytes = readSync(fd, buffer, 0, buffer.length, this.#at)
      this.#at += bytes
      return this.#decoder.decode(buffer.subarray(0, bytes), { stream: true })
    } finally {
      closeSync(fd)
    }
  }

  /** Throws away what nobody will read, so that a talkative program does not fill the disk. */
  discard(): void {
    truncateSync(this.#path)
    this.#at = 0
  }
}
