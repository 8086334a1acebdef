/** Why the signal of a handler aborted. The run is reported with it if the handler gives up because of the signal. */
export class Stopped extends Error {
  override readonly name = 'Stopped'
  /** The reason of the stop. */
  readonly code: 'STOPPED' | 'CANCELED' | 'TIMEOUT' | 'LEASE_LOST' | 'CONTINUATION_LOST'

  constructor(code: Stopped['code'], message: string) {
    super(message)
    this.code = code
  }
}

/**
 * Tells a run to stop, once, with a reason. Most runs never look at their signal and are never stopped, and an AbortController
 * with a listener takes longer than the rest of an empty run. So the signal is made on first use.
 */
export class RunStop {
  /** Undefined until the run is told to stop. */
  reason: Stopped | undefined
  #controller: AbortController | null = null
  #listener = () => {}

  get aborted(): boolean {
    return this.reason !== undefined
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.aborted) this.#controller.abort(this.reason)
    return this.#controller.signal
  }

  abort(reason: Stopped): void {
    if (this.aborted) return
    this.reason = reason
    this.#listener()
    this.#controller?.abort(reason)
  }

  /** Not called if the run was told to stop before. */
  onAbort(listener: () => void): void {
    const before = this.#listener
    this.#listener = () => {
      before()
      listener()
    }
  }
}
