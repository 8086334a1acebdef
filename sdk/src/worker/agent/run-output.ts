import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import type { World } from '../../world.ts'
import type { RemoteTransport } from '../http.ts'
import type { WorkerEvent } from '../transport.ts'
import { RunLog, RunProgress } from './output.ts'
import { Pump } from './pump.ts'
import type { RunFolder } from './run-folder.ts'

export interface OutputDeps {
  transport: Pick<RemoteTransport, 'log' | 'publish'>
  world: World
  onTrouble(error: unknown): void
}

/** What the program of a run writes, log and progress, on its way to the control plane. */
export class RunOutput {
  readonly #pumps: readonly { end(signal: AbortSignal): Promise<boolean> }[]
  readonly #lease: LeaseShape
  readonly #deps: OutputDeps

  constructor(lease: LeaseShape, folder: RunFolder, deps: OutputDeps) {
    this.#lease = lease
    this.#deps = deps
    const { world, onTrouble, transport } = deps
    const log = new RunLog(folder.stdoutFile, folder.stderrFile, folder.logPlaceFile)
    const refuse = (line: string, why: string) =>
      onTrouble(new Error(`Progress of job ${lease.job_id} that cannot be published, as ${why}: ${line.slice(0, 200)}`))
    const progress = new RunProgress(folder.progressFile, lease.stages ?? null, refuse)
    this.#pumps = [
      new Pump({ world, onTrouble, read: () => log.read(), send: (chunks) => transport.log(lease.lease_id, chunks) }),
      new Pump({
        world,
        onTrouble,
        read: (last) => progress.read(last),
        send: (events) => publishAll(events, (some) => transport.publish(lease.lease_id, some), refuse),
      }),
    ]
  }

  /** Nothing will be added: sends what is left, for as long as that can be heard. */
  async end(signal: AbortSignal): Promise<void> {
    const heard = await Promise.all(this.#pumps.map((pump) => pump.end(signal)))
    if (!heard.includes(false)) return
    this.#deps.onTrouble(new Error(`The end of the log or progress of job ${this.#lease.job_id} was not heard`))
  }

  /** Of a run that came to nothing; nobody waits for it. */
  giveUp(): void {
    for (const pump of this.#pumps) void pump.end(AbortSignal.abort())
  }
}

/** One event that the control plane refuses does not cost the others that came along with it. */
export async function publishAll(
  events: readonly WorkerEvent[],
  publish: (events: readonly WorkerEvent[]) => Promise<void>,
  refuse: (event: string, why: string) => void,
): Promise<void> {
  if (events.length === 0) return
  try {
    await publish(events)
  } catch (error) {
    if (!(error instanceof IchidoError) || !ABOUT_ONE.has(error.code)) throw error
    if (events.length === 1) refuse(JSON.stringify(events[0]), error.message)
    else for (const event of events) await publishAll([event], publish, refuse)
  }
}

/** What is refused because of one event. */
const ABOUT_ONE: ReadonlySet<string> = new Set(['INVALID_PAYLOAD', 'PAYLOAD_TOO_LARGE'])
