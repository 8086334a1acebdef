import type { WaitingForShape } from '@ichido/sdk/protocol'
import { quotaMessage } from '../limits/quota.ts'
import { awaitsUploads } from './artifact.ts'
import type { RunState } from './run-state.ts'

/** Everything that can keep a job waiting, at one moment. */
export interface WaitingFacts {
  state: RunState
  queue: string
  kind: string
  runAtMs: number
  nowMs: number
  /** Names of artifacts that have not arrived. */
  awaited: readonly string[]
  pausedAtMs: number | null
  maxConcurrent: number | null
  /** Runs of the queue that workers hold. */
  running: number
  /** True if a worker that may take the job was seen recently, or holds a similar run. */
  served: boolean
  /** True if a worker of the queue that was seen recently drains. */
  draining: boolean
  /** How long ago such a worker asked this node for work; null: not recently, but perhaps another node. */
  askedAgoMs: number | null
  /** The redrive of the job, and the quota that the redrive has met. */
  redrive: { redriveId: string; maxConcurrent: number | null; inUse: number } | null
}

/** The last poll for a job on a node. */
export interface LastPoll {
  workerId: string
  agoMs: number
}

/** Returns the first reason why the job waits; null if it does not wait. */
export function waitingFor(facts: WaitingFacts): WaitingForShape | null {
  const { queue, kind, running, redrive, maxConcurrent } = facts
  if (facts.state !== 'PENDING' && facts.state !== 'ORPHANED') return redrive === null ? null : inRedrive(redrive)
  if (awaitsUploads(facts.runAtMs)) {
    const artifacts = [...facts.awaited]
    return { reason: 'artifacts', message: `Waits for its artifacts: ${artifacts.join(', ')}`, artifacts }
  }
  if (facts.runAtMs > facts.nowMs) {
    const run_at = iso(facts.runAtMs)
    return { reason: 'run_at', message: `Not due before ${run_at}`, run_at }
  }
  if (facts.pausedAtMs !== null) {
    const since = iso(facts.pausedAtMs)
    return { reason: 'paused', message: `The queue ${queue} has been paused since ${since}`, queue, since }
  }
  if (maxConcurrent !== null && running >= maxConcurrent) {
    const message = `The queue ${queue} runs at most ${maxConcurrent} at a time, and runs ${running}`
    return { reason: 'limit', message, queue, max_concurrent: maxConcurrent, running }
  }
  if (!facts.served && facts.draining) {
    const message = `The workers of the queue ${queue} drain, so they take no new jobs`
    return { reason: 'draining', message, queue, command: 'ichido workers resume NAME' }
  }
  if (!facts.served) {
    const none = `No worker that takes jobs of kind ${kind} from the queue ${queue} was seen in the last minute`
    const message = `${none} (start one: ichido worker --queue ${queue} --exec COMMAND)`
    return { reason: 'no_worker', message, queue, command: `ichido workers enroll NAME --queue ${queue}` }
  }
  const message = running > 0 ? `The workers of the queue ${queue} are busy: they hold ${running}` : lastAsked(facts)
  return { reason: 'workers_busy', message, queue, running }
}

/** An idle worker that polls would have got the job. */
function lastAsked({ queue, askedAgoMs }: WaitingFacts): string {
  if (askedAgoMs === null) return `A worker of the queue ${queue} was seen recently, but it does not ask for work`
  const seconds = Math.round(askedAgoMs / 1000)
  return `A worker of the queue ${queue} was seen ${seconds} s ago and has not asked for work since`
}

function inRedrive({ redriveId, maxConcurrent, inUse }: NonNullable<WaitingFacts['redrive']>): WaitingForShape | null {
  if (maxConcurrent === null || inUse < maxConcurrent) return null
  const message = `Waits in redrive ${redriveId} for a slot. ${quotaMessage(maxConcurrent)}`
  return { reason: 'quota', message, redrive_id: redriveId, max_concurrent: maxConcurrent }
}

function iso(ms: number): string {
  return new Date(ms).toISOString()
}
