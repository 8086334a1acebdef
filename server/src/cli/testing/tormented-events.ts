import { Client, httpTransport } from '@ichido/sdk'
import type { EventShape } from '@ichido/sdk/protocol'
import { TcpProxy } from '../../../../scripts/testing/proxy.ts'
import type { Serving } from './cli.ts'

type Killable = Pick<Serving, 'url' | 'kill9'>

/** A server behind an address that stays the same over kills and restarts. */
export class Restarted {
  readonly #begin: () => Promise<Killable>
  readonly #proxy: TcpProxy
  #serving: Promise<Killable>

  private constructor(serving: Killable, proxy: TcpProxy, begin: () => Promise<Killable>) {
    this.#serving = Promise.resolve(serving)
    this.#proxy = proxy
    this.#begin = begin
  }

  static async serve(begin: () => Promise<Killable>): Promise<Restarted> {
    const serving = await begin()
    return new Restarted(serving, await TcpProxy.to('127.0.0.1', portOf(serving)), begin)
  }

  get url(): string {
    return `http://127.0.0.1:${this.#proxy.port}`
  }

  /** How many follow events on it now. */
  async followers(): Promise<number> {
    const page = await fetch(`${this.url}/metrics`).then(
      (answer) => answer.text(),
      () => '',
    )
    const counts = page.matchAll(/^ichido_event_subscribers\{.*\} (\d+)$/gm)
    return [...counts].reduce((sum, [, count]) => sum + Number(count), 0)
  }

  async kill(): Promise<void> {
    await (await this.#serving).kill9()
  }

  async start(): Promise<void> {
    this.#serving = this.#begin()
    this.#proxy.targetPort = portOf(await this.#serving)
  }

  async close(): Promise<void> {
    await (await this.#serving).kill9()
    await this.#proxy.close()
  }
}

const portOf = ({ url }: Killable) => Number(new URL(url).port)

/** Follows a job from its beginning to its end, through whatever happens to the server. */
export class Watcher {
  readonly seen: EventShape[] = []
  resets = 0
  readonly ended: Promise<void>

  constructor(url: string, jobId: string) {
    this.ended = this.#watch(url, jobId)
    // A later await still gets the rejection.
    this.ended.catch(() => {})
  }

  async #watch(url: string, jobId: string): Promise<void> {
    const events = new Client(httpTransport({ url })).watch(jobId, { onReset: () => void this.resets++ })
    for await (const event of events) this.seen.push(event)
  }
}
