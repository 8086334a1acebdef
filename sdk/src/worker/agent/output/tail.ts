import { closeSync, constants, fstatSync, ftruncateSync, readSync } from 'node:fs'
import { openRegular, unlessRefused } from './written-files.ts'

/** Reads what is appended to a file. Programs write to files, not pipes: they never wait for us, nor we for them. */
export class Tail {
  readonly #path: string
  readonly #decoder = new TextDecoder()
  #at: number

  constructor(path: string, at = 0) {
    this.#path = path
    this.#at = at
  }

  /** How much of it was read. */
  get at(): number {
    return this.#at
  }

  /**
   * Up to so many bytes more; '' when there are none, or no such file: it is the program's, which may remove it, or put
   * something else in its place, which nobody reads. Half a character waits for its other half.
   */
  read(bytesMax: number): string {
    const fd = unlessRefused(() => openRegular(this.#path))
    if (fd === null) {
      this.#at = 0
      return ''
    }
    try {
      const { size } = fstatSync(fd)
      // Somebody wrote with > instead of >>: it begins anew.
      if (size < this.#at) this.#at = 0
      const buffer = Buffer.alloc(Math.min(bytesMax, size - this.#at))
      const bytes = readSync(fd, buffer, 0, buffer.length, this.#at)
      const whole = buffer.subarray(0, bytes - halfAtEnd(buffer.subarray(0, bytes)))
      this.#at += whole.length
      return this.#decoder.decode(whole, { stream: true })
    } finally {
      closeSync(fd)
    }
  }

  /** Throws away what nobody will read, so that a talkative program does not fill the disk. */
  discard(): void {
    const fd = unlessRefused(() => openRegular(this.#path, constants.O_WRONLY))
    this.#at = 0
    if (fd === null) return
    try {
      ftruncateSync(fd)
    } finally {
      closeSync(fd)
    }
  }
}

/** How many of the last bytes are the beginning of a character of UTF-8 whose end is not there. */
function halfAtEnd(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0
    if (byte < 0x80) return 0
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2
    if (byte >= 0xc0) return back < length ? back : 0
  }
  return 0
}
