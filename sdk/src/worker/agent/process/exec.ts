import { closeSync } from 'node:fs'
import type { LeaseShape } from '../../../protocol/index.ts'
import type { World } from '../../../world.ts'
import { CODE_MAX, clean, failure, MESSAGE_MAX } from '../../loop/failure.ts'
import { ABORT_GRACE_MS } from '../../loop/heart.ts'
import type { RemoteTransport } from '../../loop/http.ts'
import type { Outcome, RunInHand } from '../../loop/loop.ts'
import { COST_RULE, type FailReport, isCost } from '../../loop/ports.ts'
import { Stopped } from '../../loop/run-stop.ts'
import type { Artifacts } from '../output/artifacts.ts'
import { FileRefused, openRegular, parseJson, readEnd, readRegular, unlessRefused } from '../output/files.ts'
import { RunOutput } from '../output/run-output.ts'
import { inherited } from './inherited.ts'
import { type Program, type ProgramEnd, type SupervisorCommand, startProgram } from './program.ts'
import type { RunFolder, RunFolders } from './run-folder.ts'

interface ExecDeps {
  command: string
  /** Variables for the programs besides the inherited ones. */
  env: Readonly<Record<string, string>>
  supervisor: SupervisorCommand
  folders: RunFolders
  transport: RemoteTransport
  artifacts: Artifacts
  world: World
  onTrouble(error: unknown): void
}

/** The time between SIGTERM and SIGKILL if the lease is lost. Otherwise it is as long as heartbeats continue. */
const LOST_GRACE_MS = 500
/** Linux allows up to 128 KiB in one variable. */
const VARIABLE_MAX = 100_000

/** How much of stderr is kept as the traceback. */
const LAST_ERRORS_BYTES = 4_000
/** The control plane accepts no larger call. */
const RESULT_BYTES_MAX = 16 * 1024 * 1024
const COST_BYTES_MAX = 1_000
/** The code of a run that failed because of a file that may not be read. */
const FILE_REFUSED = 'FILE_REFUSED'

/** Runs a program for each lease; the program gets its input from its environment and files. */
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

/** A result needs all of its files. The files of a failure are sent for diagnosis, and may be missing. */
async function sendOutputs(run: RunInHand, outcome: Outcome, folder: RunFolder, deps: ExecDeps): Promise<void> {
  const { lease, signal } = run
  const sendAll = () => deps.artifacts.sendAll(lease, folder.outputs, signal)
  if (outcome === 'released') return
  if ('result' in outcome) return sendAll()
  // The files of a stopped run are not sent.
  if (signal.aborted || outcome.failure.code === 'CONTINUATION_LOST') return
  await sendAll().catch((error: unknown) => deps.onTrouble(unsent(lease, error)))
}

/** The failure of a run whose program did not fail; a refused file is not retried. */
export function notDone(error: unknown): FailReport {
  return error instanceof FileRefused
    ? { code: FILE_REFUSED, message: clean(error.message, MESSAGE_MAX), retryable: false }
    : failure(error, 'EXEC_FAILED', true)
}

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
    env: programEnv(run, folder, deps.env),
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
    // Stored before the last lines are sent: if the agent ends meanwhile, the program is not run again.
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
    program.stop(isLost ? LOST_GRACE_MS : ABORT_GRACE_MS)
  }
  signal.addEventListener('abort', stop, { once: true })
}

/** The program's environment, without the agent's secrets and without the marks of a run that contains the agent. */
function programEnv({ lease, slot }: RunInHand, folder: RunFolder, added: ExecDeps['env']): Record<string, string> {
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

/** The outcome of a run, from how its program ended, the exit code, and the files that it wrote. */
export function outcomeOf(end: ProgramEnd, signal: AbortSignal, folder: RunFolder): Outcome {
  if (end.by === 'deadline') {
    const message = 'No heartbeat was confirmed in time; the program was stopped'
    return { failure: { code: 'CONTINUATION_LOST', message, retryable: true } }
  }
  if (end.by !== 'itself') {
    return (
      stoppedOutcome(signal) ?? { failure: { code: 'STOPPED', message: 'The program was stopped', retryable: true } }
    )
  }
  if (end.code !== 0) {
    // The program failed by its exit code; a refused file adds nothing.
    const written = unlessRefused(() => readResult(folder))
    return {
      failure: failureOf(end, written, unlessRefused(() => readEnd(folder.stderrFile, LAST_ERRORS_BYTES)) ?? ''),
    }
  }
  try {
    requireRegular(folder)
    return successOf(folder)
  } catch (error) {
    if (!(error instanceof FileRefused)) throw error
    return { failure: { code: FILE_REFUSED, message: error.message, retryable: false } }
  }
}

/** Throws if the program replaced a file that the agent reads during the run. */
function requireRegular({ stdoutFile, stderrFile, progressFile }: RunFolder): void {
  for (const file of [stdoutFile, stderrFile, progressFile]) {
    const fd = openRegular(file)
    if (fd !== null) closeSync(fd)
  }
}

function successOf(folder: RunFolder): Outcome {
  const written = readResult(folder)
  if (written === undefined) return invalid('The result file holds no JSON')
  const text = readWritten(folder.costFile, COST_BYTES_MAX)
  if (text === null) return { result: { result: written } }
  // Not parsed as JSON, in which the .25 that `bc` prints is not a number.
  const cost = Number(text)
  return isCost(cost) ? { result: { result: written, cost } } : invalid(`The cost file does not hold ${COST_RULE}`)
}

/** Undefined if it is not JSON. */
function readResult({ resultFile }: RunFolder): unknown {
  const text = readWritten(resultFile, RESULT_BYTES_MAX)
  return text === null ? null : parseJson(text)
}

/** Null if the file is empty or missing. */
function readWritten(path: string, bytesMax: number): string | null {
  const text = readRegular(path, bytesMax)
  return text === null || text.trim() === '' ? null : text
}

function invalid(message: string): Outcome {
  return { failure: { code: 'INVALID_RESULT', message, retryable: true } }
}

/** Null if the run was not told to stop. */
function stoppedOutcome({ reason }: AbortSignal): Outcome | null {
  if (!(reason instanceof Stopped)) return null
  const { code, message } = reason
  return code === 'STOPPED' ? 'released' : { failure: { code, message, retryable: true } }
}

/** Uses the program's own error if it wrote one: `{"error": {"code", "message", "retryable"}}`. */
function failureOf({ code, signal }: ProgramEnd, written: unknown, errors: string): FailReport {
  const error = errorIn(written)
  const how = signal === null ? `exited with code ${code}` : `was ended by ${signal}`
  const lastLine = errors.trim().split('\n').at(-1) ?? ''
  return {
    code: clean(textOr(error.code, signal ?? `EXIT_${code}`), CODE_MAX),
    message: clean(textOr(error.message, `The program ${how}${lastLine === '' ? '' : `: ${lastLine}`}`), MESSAGE_MAX),
    retryable: typeof error.retryable === 'boolean' ? error.retryable : true,
    ...(errors.trim() === '' ? {} : { traceback: clean(errors, MESSAGE_MAX) }),
  }
}

function errorIn(written: unknown): { code?: unknown; message?: unknown; retryable?: unknown } {
  if (typeof written !== 'object' || written === null || !('error' in written)) return {}
  return typeof written.error === 'object' && written.error !== null ? written.error : {}
}

function textOr(value: unknown, otherwise: string): string {
  return typeof value === 'string' && value !== '' ? value : otherwise
}
