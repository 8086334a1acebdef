import { IchidoError } from '../../protocol/index.ts'
import type { World } from '../../world.ts'
import { failure, Stopped } from '../failure.ts'
import type { RemoteTransport } from '../http.ts'
import type { Outcome, RunInHand } from '../loop.ts'
import type { WorkerEvent } from '../transport.ts'
import type { Artifacts } from './artifacts.ts'
import { outcomeOf, stoppedOutcome } from './exec-outcome.ts'
import { RunLog, RunProgress } from './output.ts'
import { type Program, type SupervisorCommand, startProgram, withoutOurs } from './program.ts'
import { Pump } from './pump.ts'
import type { RunFolder, RunFolders } from './run-folder.ts'

export interface ExecDeps {
  command: string
  supervisor: SupervisorCommand
  folders: RunFolders
  transport: RemoteTransport
  artifacts: Artifacts
  world: World
  onTrouble(error: unknown): void
}

/** Between the polite signal and the other; a run whose lease is lost has no such time. */
const STOP_GRACE_MS = 10_000
const LOST_GRACE_MS = 500
/** Linux takes up to 128 KiB in one variable. */
const VARIABLE_MAX = 100_000

/** Runs a program for each lease: any program, told by its surroundings what to do. */
export function execWork(deps: ExecDeps): (run: RunInHand) => Promise<Outcome> {
  return async (run) => {
    const { lease, signal } = run
    try {
      const folder = deps.folders.make(lease)
      await deps.artifacts.fetchAll(lease, folder.work, signal)
      const outcome = await runProgram(run, folder, deps)
      if (outcome !== 'released' && 'result' in outcome) await deps.artifacts.sendAll(lease, folder.outputs, signal)
      return outcome
    } catch (error) {
      return stoppedOutcome(signal) ?? { failure: failure(error, 'EXEC_FAILED', true) }
    }
  }
}

async function runProgram(run: RunInHand, folder: RunFolder, deps: ExecDeps): Promise<Outcome> {
  const { lease, signal, hold } = run
  signal.throwIfAborted()
  const program = startProgram(deps.supervisor, {
    command: deps.command,
    folder: folder.work,
    env: surroundings(run, folder),
    leaseId: lease.lease_id,
    payloadFile: folder.payloadFile,
    stdoutFile: folder.stdoutFile,
    stderrFile: folder.stderrFile,
    progressFile: folder.progressFile,
    confirmed: hold.confirmed(),
    aloneMs: hold.aloneMs,
  })
  hold.onConfirmed(program.confirm)
  stopWhenTold(program, signal)
  const log = new RunLog(folder.stdoutFile, folder.stderrFile)
  const { world, onTrouble, transport } = deps
  const refuse = (line: string, why: string) =>
    onTrouble(new Error(`Progress of job ${lease.job_id} that cannot be published, as ${why}: ${line.slice(0, 200)}`))
  const progress = new RunProgress(folder.progressFile, lease.stages ?? null, refuse)
  const pumps = [
    new Pump({ world, onTrouble, read: () => log.read(), send: (chunks) => transport.log(lease.lease_id, chunks) }),
    new Pump({
      world,
      onTrouble,
      read: (last) => progress.read(last),
      send: (events) => publishAll(events, (some) => transport.publish(lease.lease_id, some), refuse),
    }),
  ]
  try {
    const outcome = outcomeOf(await program.ended, signal, folder)
    run.ended()
    // Before its last lines are sent, which may take a while: should the agent end meanwhile, this is not done again.
    if (outcome !== 'released') {
      await deps.folders.keep(lease, { leaseId: lease.lease_id, ...outcome }).catch(onTrouble)
    }
    const heard = await Promise.all(pumps.map((pump) => pump.end(signal)))
    if (heard.includes(false))
      onTrouble(new Error(`The end of the log or progress of job ${lease.job_id} was not heard`))
    return outcome
  } finally {
    hold.onConfirmed(() => {})
    for (const pump of pumps) void pump.end(AbortSignal.abort())
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

function stopWhenTold(program: Program, signal: AbortSignal): void {
  const stop = () => {
    const isLost = signal.reason instanceof Stopped && signal.reason.code === 'LEASE_LOST'
    program.stop(isLost ? LOST_GRACE_MS : STOP_GRACE_MS)
  }
  signal.addEventListener('abort', stop, { once: true })
}

/** What the program sees. The agent's own secrets are not among it. */
function surroundings({ lease, slot }: RunInHand, folder: RunFolder): Record<string, string> {
  const lastProgress = JSON.stringify(lease.last_progress ?? null)
  return {
    ...withoutOurs(process.env),
    ICHIDO_JOB_ID: lease.job_id,
    ICHIDO_ATTEMPT: String(lease.attempt),
    ICHIDO_LEASE_ID: lease.lease_id,
    ICHIDO_KIND: lease.kind,
    ICHIDO_QUEUE: lease.queue,
    ICHIDO_SLOT: String(slot),
    ICHIDO_AGENT_DIR: process.cwd(),
    ICHIDO_PAYLOAD_FILE: folder.payloadFile,
    ICHIDO_RESULT_FILE: folder.resultFile,
    ICHIDO_PROGRESS_FILE: folder.progressFile,
    ...(lastProgress.length > VARIABLE_MAX ? {} : { ICHIDO_LAST_PROGRESS: lastProgress }),
    ...(lease.timeout_seconds === null ? {} : { ICHIDO_TIMEOUT_SECONDS: String(lease.timeout_seconds) }),
    ...(lease.traceparent === null ? {} : { TRACEPARENT: lease.traceparent }),
  }
}
