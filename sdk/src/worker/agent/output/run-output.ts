import { IchidoError, type LeaseShape } from '../../../protocol/index.ts'
import type { World } from '../../../world.ts'
import { clean } from '../../loop/failure.ts'
import type { RemoteTransport } from '../../loop/http.ts'
import type { LogChunk, WorkerEvent } from '../../loop/ports.ts'
import { Pump } from '../../loop/pump.ts'
import type { RunFolder } from '../process/run-folder.ts'
import { RunLog, RunProgress } from './output.ts'

interface OutputDeps {
  transport: Pick<RemoteTransport, 'log' | 'publish'>
  world: World
  onTrouble(error: unknown): void
}

/** How long the report of a stopped run waits for its last lines. */
const STOPPED_WITHIN_MS = 10_000
/** How much of an invalid line is shown. */
const LINE_WORDS_MAX = 200

/** Refusals that concern a single event. */
const EVENT_REFUSALS: ReadonlySet<string> = new Set(['INVALID_PAYLOAD', 'PAYLOAD_TOO_LARGE'])

/** Sends the log and the progress of a run to the control plane. */
export class RunOutput {
  readonly #log: Pump<LogChunk[]>
  readonly #progress: Pump<WorkerEvent[]>
  readonly #lease: LeaseShape
  readonly #deps: OutputDeps

  constructor(lease: LeaseShape, folder: RunFolder, deps: OutputDeps) {
    this.#lease = lease
    this.#deps = deps
    const { world, onTrouble, transport } = deps
    const log = new RunLog(folder.stdoutFile, folder.stderrFile, folder.logPlaceFile)
    const refuse = (line: string, why: string) => {
      const words = clean(line, LINE_WORDS_MAX)
      onTrouble(new Error(`Progress of job ${lease.job_id} cannot be published, because ${why}: ${words}`))
      log.note(`Progress cannot be published, because ${why}: ${words}`)
    }
    const progress = new RunProgress(folder.progressFile, lease.stages ?? null, refuse)
    const leaseId = lease.lease_id
    this.#log = new Pump({ world, onTrouble, read: () => log.read(), send: (chunks) => transport.log(leaseId, chunks) })
    this.#progress = new Pump({
      world,
      onTrouble,
      read: (last) => progress.read(last),
      send: (events) => publishAll(events, (some) => transport.publish(leaseId, some), refuse),
    })
  }

  /** Sends the rest after the program has ended. A stopped run has only a short time for it. */
  async end(signal: AbortSignal): Promise<void> {
    const late = new AbortController()
    const giveUp = () => late.abort()
    const callOff = signal.aborted ? this.#deps.world.after(STOPPED_WITHIN_MS, giveUp) : () => {}
    signal.addEventListener('abort', giveUp)
    // The log is last, because it contains the notes about invalid progress.
    const heard = [await this.#progress.end(late.signal), await this.#log.end(late.signal)]
    signal.removeEventListener('abort', giveUp)
    callOff()
    if (!heard.includes(false)) return
    this.#deps.onTrouble(
      new Error(`The end of the log or progress of job ${this.#lease.job_id} could not be delivered`),
    )
  }

  /** Stops sending without waiting. */
  giveUp(): void {
    for (const pump of [this.#log, this.#progress]) void pump.end(AbortSignal.abort())
  }
}

/** If the control plane refuses a call because of one event, each event is sent separately. */
export async function publishAll(
  events: readonly WorkerEvent[],
  publish: (events: readonly WorkerEvent[]) => Promise<void>,
  refuse: (event: string, why: string) => void,
): Promise<void> {
  if (events.length === 0) return
  try {
    await publish(events)
  } catch (error) {
    if (!(error instanceof IchidoError) || !EVENT_REFUSALS.has(error.code)) throw error
    if (events.length === 1) refuse(JSON.stringify(events[0]), error.message)
    else for (const event of events) await publishAll([event], publish, refuse)
  }
}
