import type { LeaseShape } from '../../../protocol/index.ts'
import type { World } from '../../../world.ts'
import { clean, failure, MESSAGE_MAX, Stopped } from '../../loop/failure.ts'
import type { RemoteTransport } from '../../loop/http.ts'
import type { Outcome, RunInHand } from '../../loop/loop.ts'
import type { FailReport } from '../../loop/transport.ts'
import type { Artifacts } from '../output/artifacts.ts'
import { RunOutput } from '../output/run-output.ts'
import { FileRefused } from '../output/written-files.ts'
import { FILE_REFUSED, outcomeOf, stoppedOutcome } from './exec-outcome.ts'
import { inherited } from './inherited.ts'
import { type Program, type SupervisorCommand, startProgram } from './program.ts'
import type { RunFolder, RunFolders } from './run-folder.ts'

export interface ExecDeps {
  command: string
  /** Variables that its programs get beside those that they inherit. */
  env: Readonly<Record<string, string>>
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
      await sendOutputs(run, outcome, folder, deps)
      return outcome
    } catch (error) {
      return stoppedOutcome(signal) ?? { failure: notDone(error) }
    }
  }
}

/** A result goes with its files or not at all; those of a failure, for whoever asks why, change nothing about it. */
async function sendOutputs(run: RunInHand, outcome: Outcome, folder: RunFolder, deps: ExecDeps): Promise<void> {
  const { lease, signal } = run
  const sendAll = () => deps.artifacts.sendAll(lease, folder.outputs, signal)
  if (outcome === 'released') return
  if ('result' in outcome) return sendAll()
  // Nobody waits for the files of one that was stopped.
  if (signal.aborted || outcome.failure.code === 'CONTINUATION_LOST') return
  await sendAll().catch((error: unknown) => deps.onTrouble(unsent(lease, error)))
}

/** What keeps a run from its end beside its program; a file that is refused would be so the next time, too. */
export function notDone(error: unknown): FailReport {
  return error instanceof FileRefused
    ? { code: FILE_REFUSED, message: clean(error.message, MESSAGE_MAX), retryable: false }
    : failure(error, 'EXEC_FAILED', true)
}

/** What is said of files of a failure that did not get through. */
export function unsent({ job_id: jobId }: LeaseShape, error: unknown): Error {
  const why = error instanceof Error ? error.message : String(error)
  return new Error(`The files of the failed job ${jobId} could not be sent: ${why}`)
}

async function runProgram(run: RunInHand, folder: RunFolder, deps: ExecDeps): Promise<Outcome> {
  const { lease, signal, hold } = run
  signal.throwIfAborted()
  const program = startProgram(deps.supervisor, {
    command: deps.command,
    folder: folder.work,
    env: surroundings(run, folder, deps.env),
    leaseId: lease.lease_id,
    payloadFile: folder.payloadFile,
    stdoutFile: folder.stdoutFile,
    stderrFile: folder.stderrFile,
    progressFile: folder.progressFile,
    noteFile: folder.noteFile,
    confirmed: hold.confirmed(),
    aloneMs: hold.aloneMs,
  })
  hold.onConfirmed(program.confirm)
  stopWhenTold(program, signal)
  const { onTrouble } = deps
  const output = new RunOutput(lease, folder, deps)
  try {
    const outcome = outcomeOf(await program.ended, signal, folder)
    run.ended()
    // Before its last lines are sent, which may take a while: should the agent end meanwhile, this is not done again.
    if (outcome !== 'released') {
      await deps.folders.keep(lease, { leaseId: lease.lease_id, ...outcome }).catch(onTrouble)
    }
    await output.end(signal)
    return outcome
  } finally {
    hold.onConfirmed(() => {})
    output.giveUp()
  }
}

function stopWhenTold(program: Program, signal: AbortSignal): void {
  const stop = () => {
    const isLost = signal.reason instanceof Stopped && signal.reason.code === 'LEASE_LOST'
    program.stop(isLost ? LOST_GRACE_MS : STOP_GRACE_MS)
  }
  signal.addEventListener('abort', stop, { once: true })
}

/** The program's environment. The agent's own secrets are not in it, nor the marks of a run that the agent may be part of. */
function surroundings({ lease, slot }: RunInHand, folder: RunFolder, added: ExecDeps['env']): Record<string, string> {
  const lastProgress = JSON.stringify(lease.last_progress ?? null)
  return {
    ...inherited(process.env),
    ...added,
    ICHIDO_JOB_ID: lease.job_id,
    ICHIDO_ATTEMPT: String(lease.attempt),
    ICHIDO_LEASE_ID: lease.lease_id,
    ICHIDO_KIND: lease.kind,
    ICHIDO_QUEUE: lease.queue,
    ICHIDO_SLOT: String(slot),
    ICHIDO_AGENT_DIR: process.cwd(),
    ICHIDO_PAYLOAD_FILE: folder.payloadFile,
    ICHIDO_RESULT_FILE: folder.resultFile,
    ICHIDO_COST_FILE: folder.costFile,
    ICHIDO_PROGRESS_FILE: folder.progressFile,
    ...(lastProgress.length > VARIABLE_MAX ? {} : { ICHIDO_LAST_PROGRESS: lastProgress }),
    ...(lease.timeout_seconds === null ? {} : { ICHIDO_TIMEOUT_SECONDS: String(lease.timeout_seconds) }),
    ...(lease.traceparent === null ? {} : { TRACEPARENT: lease.traceparent }),
  }
}
