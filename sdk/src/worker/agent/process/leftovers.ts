import { askedMsOf } from '../../../client/retry.ts'
import type { LeaseShape } from '../../../protocol/index.ts'
import { sleep, type World } from '../../../world.ts'
import type { RemoteTransport } from '../../loop/http.ts'
import { isPassing } from '../../loop/loop.ts'
import type { RunReport } from '../../loop/transport.ts'
import type { Artifacts } from '../output/artifacts.ts'
import { outcomeText } from '../output/run-announcer.ts'
import { RunOutput } from '../output/run-output.ts'
import { sweepCgroups } from './cgroup.ts'
import { notDone, unsent } from './exec.ts'
import { isSupervised, killRun, killSupervisor } from './kill.ts'
import { preyOf, readNote } from './program-note.ts'
import type { RunFolder, RunFolders } from './run-folder.ts'

export interface LeftoverDeps {
  folders: RunFolders
  transport: Pick<RemoteTransport, 'heartbeat' | 'log' | 'publish' | 'report'>
  artifacts: Pick<Artifacts, 'sendAll'>
  world: World
  say(line: string): void
  onTrouble(error: unknown): void
}

const RETRY_FIRST_MS = 1_000
const RETRY_MAX_MS = 60_000
/** A supervisor asks its program for 1 s to end, then kills for 4 s at most. */
const SUPERVISED_MAX_MS = 6_000
const LOOK_MS = 100
/** In the time of a lease. */
const BEATS = 4

/** Brings to an end what an earlier process of this agent could not: its reports, and the runs that it died on. */
export async function settleLeftovers(deps: LeftoverDeps, signal: AbortSignal): Promise<void> {
  sweepCgroups()
  const { kept, abandoned } = deps.folders.leftovers()
  await Promise.all([
    ...kept.map(({ lease, report }) => deliver(lease, report, deps, signal)),
    ...abandoned.map(async ({ lease, folder }) => {
      // Their supervisors see to it by themselves; nothing is said before that is done.
      await unsupervised(lease, deps.world, signal)
      if (signal.aborted) return
      if (!(await killAbandoned(lease, folder, deps.world))) return
      const died = { code: 'AGENT_DIED', message: 'The agent ended while the program ran', retryable: true }
      await deliver(lease, { leaseId: lease.lease_id, failure: died }, deps, signal)
    }),
  ])
}

/** Until the run has no supervisor any more, or one that will not end by itself. */
async function unsupervised(lease: LeaseShape, world: World, signal: AbortSignal): Promise<void> {
  const untilMs = world.monotonic() + SUPERVISED_MAX_MS
  while (!signal.aborted && world.monotonic() < untilMs && isSupervised(lease.lease_id)) {
    await sleep(world, LOOK_MS, signal)
  }
}

/** Whether nothing of it is left. */
async function killAbandoned({ lease_id: leaseId }: LeaseShape, folder: RunFolder, world: World): Promise<boolean> {
  // What it noted is its last word only when it is dead.
  if (!(await killSupervisor(leaseId, world))) return false
  return killRun(preyOf(readNote(folder.noteFile), leaseId, folder.noteFile), world)
}

async function deliver(lease: LeaseShape, report: RunReport, deps: LeftoverDeps, signal: AbortSignal): Promise<void> {
  const { transport, folders, world, say } = deps
  const folder = folders.find(lease)
  const kept = keepLease(lease, deps, signal)
  // Progress from its beginning: an event that is told again is still one event.
  if (folder !== null && !signal.aborted) await new RunOutput(lease, folder, deps).end(kept.signal)
  for (let failures = 0; !signal.aborted; failures++) {
    try {
      const told = folder === null ? report : await sendOutputs(lease, report, folder, deps, kept.signal)
      const { refusals } = await transport.report([told], null)
      const [refusal = null] = refusals
      if (refusal !== null) throw refusal
      say(`delivered what was left of job ${lease.job_id}: it ${outcomeText(told)}`)
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

/** It may have died on sending them. A result goes with its files or not at all, a failure also without them. */
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

/** Heartbeats for what is still to be sent: nothing of the run lives, but much may be left of it. */
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
      // Whether anybody hears it is found out by the report.
      const [answer] = await transport.heartbeat([leaseId]).catch(() => [])
      if (answer?.held === false) return lost.abort()
      await sleep(world, (ttlSeconds * 1000) / BEATS, over)
    }
  }
  void beat()
  return { signal: AbortSignal.any([over, lost.signal]), end: () => ended.abort() }
}
