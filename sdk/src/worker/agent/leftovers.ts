import type { LeaseShape } from '../../protocol/index.ts'
import { sleep, type World } from '../../world.ts'
import type { RemoteTransport } from '../http.ts'
import { isPassing } from '../loop.ts'
import type { RunReport } from '../transport.ts'
import type { Artifacts } from './artifacts.ts'
import { sweepCgroups } from './cgroup.ts'
import { unsent } from './exec.ts'
import { isSupervised, killRun } from './kill.ts'
import type { RunFolder, RunFolders } from './run-folder.ts'
import { RunOutput } from './run-output.ts'
import { outcomeText } from './telling.ts'

export interface LeftoverDeps {
  folders: RunFolders
  transport: Pick<RemoteTransport, 'log' | 'publish' | 'report'>
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

/** Brings to an end what an earlier process of this agent could not: its reports, and the runs that it died on. */
export async function settleLeftovers(deps: LeftoverDeps, signal: AbortSignal): Promise<void> {
  sweepCgroups()
  const { kept, abandoned } = deps.folders.leftovers()
  await Promise.all([
    ...kept.map(({ lease, report }) => deliver(lease, report, deps, signal)),
    ...abandoned.map(async (lease) => {
      // Their supervisors see to it by themselves, and know their groups; nothing is said before that is done.
      await unsupervised(lease, deps.world, signal)
      if (signal.aborted) return
      if (!(await killRun({ group: null, leaseId: lease.lease_id, cgroup: null }, deps.world))) return
      const failure = { code: 'AGENT_DIED', message: 'The agent ended while the program ran', retryable: true }
      await deliver(lease, { leaseId: lease.lease_id, failure }, deps, signal)
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

async function deliver(lease: LeaseShape, report: RunReport, deps: LeftoverDeps, signal: AbortSignal): Promise<void> {
  const { transport, folders, world, say } = deps
  const folder = folders.find(lease)
  // Progress from its beginning: an event that is told again is still one event.
  if (folder !== null && !signal.aborted) await new RunOutput(lease, folder, deps).end(signal)
  for (let failures = 0; !signal.aborted; failures++) {
    try {
      if (folder !== null) await sendOutputs(lease, report, folder, deps, signal)
      const { refusals } = await transport.report([report], null)
      const [refusal = null] = refusals
      if (refusal !== null) throw refusal
      say(`delivered what was left of job ${lease.job_id}: it ${outcomeText(report)}`)
      return await folders.drop(lease)
    } catch (error) {
      if (!isPassing(error)) {
        say(`what was left of job ${lease.job_id} is not wanted any more: ${String(error)}`)
        return await folders.drop(lease)
      }
      const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** Math.min(failures, 10))
      await sleep(world, ms * (0.5 + world.random() / 2), signal)
    }
  }
}

/** It may have died on sending them. A failure goes out without those that are refused. */
async function sendOutputs(
  lease: LeaseShape,
  report: RunReport,
  { outputs }: RunFolder,
  { artifacts, onTrouble }: LeftoverDeps,
  signal: AbortSignal,
): Promise<void> {
  try {
    await artifacts.sendAll(lease, outputs, signal)
  } catch (error) {
    if ('result' in report || isPassing(error)) throw error
    onTrouble(unsent(lease, error))
  }
}
