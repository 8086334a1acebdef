/** Sends messages to receivers outside. */
export interface Courier {
  /** All addresses of a host; an address is its own. Rejects if there are none. */
  resolve(host: string): Promise<string[]>
  /**
   * Sends one message to this address, whatever the name resolves to by now, and returns the status. It follows no
   * redirects. Rejects if there is no answer before the signal aborts. If the answer has begun by then, its status counts.
   */
  post(message: Message, signal: AbortSignal): Promise<number>
}

export interface Message {
  url: URL
  /** An address of the URL's host that was checked. */
  address: string
  headers: Readonly<Record<string, string>>
  body: string
}
