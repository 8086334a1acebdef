/** All bodies of this node that are being read, and those of one sender: whole batches, or as much in smaller ones. */
const NODE_BYTES_MAX = 128 * 1024 * 1024
const SENDER_BYTES_MAX = 16 * 1024 * 1024

interface Waiting {
  sender: string
  bytes: number
  enter(): void
}

/**
 * Room for large bodies that are held in memory until they are parsed. A body for which there is none is left in the socket.
 * One sender can fill its own share only, so that others are let in however slowly it sends.
 */
export class BodyBudget {
  readonly #held = new Map<string, number>()
  readonly #waiting = new Set<Waiting>()
  #total = 0

  /** Calls back when there is room; the answer gives it back, or gives up waiting for it. Twice is once. */
  take(sender: string, bytes: number, enter: () => void): () => void {
    const asked: Waiting = { sender, bytes, enter }
    this.#waiting.add(asked)
    this.#letIn()
    let given = false
    return () => {
      if (given) return
      given = true
      if (this.#waiting.delete(asked)) return
      this.#change(sender, -bytes)
      this.#letIn()
    }
  }

  #letIn(): void {
    for (const asked of this.#waiting) {
      const { sender, bytes, enter } = asked
      const own = this.#held.get(sender) ?? 0
      // Alone it may always be: a limit that is larger than the share must not wait for ever.
      const fits = own === 0 || own + bytes <= SENDER_BYTES_MAX
      if (!fits || (this.#total > 0 && this.#total + bytes > NODE_BYTES_MAX)) continue
      this.#waiting.delete(asked)
      this.#change(sender, bytes)
      enter()
    }
  }

  #change(sender: string, bytes: number): void {
    this.#total += bytes
    const own = (this.#held.get(sender) ?? 0) + bytes
    if (own === 0) this.#held.delete(sender)
    else this.#held.set(sender, own)
  }
}
