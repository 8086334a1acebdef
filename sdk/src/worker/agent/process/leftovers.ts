import { askedMsOf } from '../../../client/retry.ts'
import type { LeaseShape } from '../../../protocol/index.ts'
import { sleep, type World } from '../../../world.ts'
import { isPassing } from '../../loop/failure.ts'
import type { RemoteTransport } from '../../loop/http.ts'
import type { RunReport } from '../../loop/ports.ts'
import { outcomeText } from '../output/announcer.ts'
import type { Artifacts } from '../output/artifacts.ts'
import { RunOutput } from '../output/run-output.ts'
import { notDone, unsent } from './exec.ts'
import { isSupervised, killRun, killSupervisor, preyOf, readNote } from './kill.ts'
import { sweepCgroups } from './processes.ts'
import type { RunFolder, RunFolders } from './run-folder.ts'

interface LeftoverDeps {
  folders: RunFolders
  transport: Pick<RemoteTransport, 'heartbeat' | 'log' | 'publish' | 'report'>
  artifacts: Pick<Artifacts, 'sendAll'>
  world: World
  say(line: string): void
  onTrouble(error: unknown): void
}

const RETRY_FIRST_MS = 1_000
const RETRY_MAX_MS = 60_000
/** A supervisor gives its program 1 s after SIGTERM, then kills for 4 s at most. */
const SUPERVISED_MAX_MS = 6_000
const LOOK_MS = 100
/** Heartbeats in the lifetime of a lease. */
const BEATS = 4

/** Delivers the reports of an earlier process of this agent, and ends the runs that it left behind. */
export async function settleLeftovers(deps: LeftoverDeps, signal: AbortSignal): Promise<void> {
  sweepCgroups()
  const { kept, abandoned } = deps.folders.leftovers()
  await Promise.all([
    ...kept.map(({ lease, report }) => deliver(lease, report, deps, signal)),
    ...abandoned.map(async ({ lease, folder }) => {
      // The supervisors end them; the failure is reported after that.
      await unsupervised(lease, deps.world, signal)
      if (signal.aborted) return
      if (!(await killAbandoned(lease, folder, deps.world))) return
      const died = { code: 'AGENT_DIED', message: 'The agent ended while the program ran', retryable: true }
      await deliver(lease, { leaseId: lease.lease_id, failure: died }, deps, signal)
    }),
  ])
}

/** Waits until the run has no supervisor, or the supervisor took too long. */
async function unsupervised(lease: LeaseShape, world: World, signal: AbortSignal): Promise<void> {
  const untilMs = world.monotonic() + SUPERVISED_MAX_MS
  while (!signal.aborted && world.monotonic() < untilMs && isSupervised(lease.lease_id)) {
    await sleep(world, LOOK_MS, signal)
  }
}

/** Returns whether all its processes are dead. */
async function killAbandoned({ lease_id: leaseId }: LeaseShape, folder: RunFolder, world: World): Promise<boolean> {
  // The supervisor may write its note until it is dead.
  if (!(await killSupervisor(leaseId, world))) return false
  return killRun(preyOf(readNote(folder.noteFile), leaseId, folder.noteFile), world)
}

async function deliver(lease: LeaseShape, report: RunReport, deps: LeftoverDeps, signal: AbortSignal): Promise<void> {
  const { transport, folders, world, say } = deps
  const folder = folders.find(lease)
  const kept = keepLease(lease, deps, signal)
  // Progress is sent from its beginning: a repeated event is stored once.
  if (folder !== null && !signal.aborted) await new RunOutput(lease, folder, deps).end(kept.signal)
  for (let failures = 0; !signal.aborted; failures++) {
    try {
      const outcome = folder === null ? report : await sendOutputs(lease, report, folder, deps, kept.signal)
      const { refusals } = await transport.report([outcome], null)
      const [refusal = null] = refusals
      if (refusal !== null) throw refusal
      say(`delivered what was left of job ${lease.job_id}: it ${outcomeText(outcome)}`)
      await folders.drop(lease)
      break
    } catch (error) {
      if (!isPassing(error)) {
        say(`the control plane refuses what was left of job ${lease.job_id}: ${String(error)}`)
        await folders.drop(lease)
        break
      }
      const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** Math.min(failures, 10))
      await sleep(world, askedMsOf(error) + ms * (0.5 + world.random() / 2), signal)
    }
  }
  kept.end()
}

/** The earlier process may have died while it sent them. A result needs all of its files, a failure does not. */
async function sendOutputs(
  lease: LeaseShape,
  report: RunReport,
  { outputs }: RunFolder,
  { artifacts, onTrouble }: LeftoverDeps,
  signal: AbortSignal,
): Promise<RunReport> {
  try {
    await artifacts.sendAll(lease, outputs, signal)
  } catch (error) {
    if (isPassing(error)) throw error
    if ('result' in report) return { leaseId: lease.lease_id, failure: notDone(error) }
    onTrouble(unsent(lease, error))
  }
  return report
}

/** Keeps the lease while the rest is sent; the run itself has ended. */
function keepLease(
  { lease_id: leaseId, lease_ttl_seconds: ttlSeconds }: LeaseShape,
  { transport, world }: LeftoverDeps,
  signal: AbortSignal,
): { signal: AbortSignal; end(): void } {
  const ended = new AbortController()
  const lost = new AbortController()
  const over = AbortSignal.any([signal, ended.signal])
  async function beat(): Promise<void> {
    while (!over.aborted) {
      // The report finds out whether the control plane answers.
      const [answer] = await transport.heartbeat([leaseId]).catch(() => [])
      if (answer?.held === false) return lost.abort()
      await sleep(world, (ttlSeconds * 1000) / BEATS, over)
    }
  }
  void beat()
  return { signal: AbortSignal.any([over, lost.signal]), end: () => ended.abort() }
}
