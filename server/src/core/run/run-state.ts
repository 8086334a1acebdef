import { JOB_STATES } from '@ichido/sdk/protocol'
import { isObjectOf, isText, orMissing, orNull, stored } from '../json/stored-json.ts'

/**
 * The state machine of a run: a table, and one pure function that reads it. A run never goes back: a retry is a new
 * run. The SQL of every verb has the same guards in its WHERE. A test drives each (state, command) pair through
 * `decide()` and through both engines, and compares.
 */
export const RUN_STATES = JOB_STATES

export type RunState = (typeof RUN_STATES)[number]

export const ACTIVE_STATES = ['PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING'] as const satisfies readonly RunState[]
export const FINAL_STATES = ['SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED'] as const satisfies readonly RunState[]

/** A worker holds runs in these states. */
const LEASED_STATES: readonly RunState[] = ['ASSIGNED', 'RUNNING']

export function isFinal(state: RunState): boolean {
  return (FINAL_STATES as readonly RunState[]).includes(state)
}

/** All moves. No other move can happen. */
export const TRANSITIONS = {
  lease: { from: ['PENDING', 'ORPHANED'], to: 'ASSIGNED' },
  start: { from: ['ASSIGNED'], to: 'RUNNING' },
  /** A worker without heartbeats reports after its run timed out: it takes the waiting next run, and ends it. */
  adopt: { from: ['PENDING'], to: 'RUNNING' },
  finish: { from: ['RUNNING'], to: 'SUCCEEDED' },
  fail: { from: ['RUNNING'], to: 'FAILED' },
  expire: { from: ['RUNNING'], to: 'TIMED_OUT' },
  orphan: { from: ['ASSIGNED'], to: 'ORPHANED' },
  /** The worker gives the run back before it started. Any worker can lease it again. */
  release: { from: ['ASSIGNED'], to: 'ORPHANED' },
  /** The worker gives up the run, for example at shutdown. The next run is due at once. */
  releaseRunning: { from: ['RUNNING'], to: 'FAILED' },
  cancel: { from: ['PENDING', 'ASSIGNED', 'ORPHANED'], to: 'CANCELED' },
  /** Ends a RUNNING run with a cancel request. The worker does it, or the leader after the deadline. */
  endCanceled: { from: ['RUNNING'], to: 'CANCELED' },
  /** An orphan that was leased too often is given up. */
  exhaust: { from: ['ORPHANED'], to: 'FAILED' },
} as const satisfies Record<string, { from: readonly RunState[]; to: RunState }>

export type Verb = keyof typeof TRANSITIONS

/** The facts of a run that the guards check. */
export interface RunFacts {
  state: RunState
  version: number
  runAtMs: number
  workerId: string | null
  leaseId: string | null
  startId: string | null
  /** The epoch that `start` wrote. A later change of leader must not fail a running run. */
  leaderEpoch: number | null
  cancelRequestedAtMs: number | null
  /** Hash of the accepted outcome, once there is one. */
  outcomeHash: string | null
  /** Only for `adopt`: the run of the job before this one. */
  before?: { state: RunState; workerId: string | null; leaseId: string | null }
}

export type RunCommand =
  | { verb: 'lease' }
  | { verb: 'start'; workerId: string; leaseId: string; startId: string; version?: number }
  | {
      verb: 'finish' | 'fail'
      workerId: string
      leaseId: string
      outcomeHash: string
      version?: number
      leaderEpoch?: number
    }
  | { verb: 'heartbeat' | 'release'; workerId: string; leaseId: string }
  /** The lease of the run before, which timed out. */
  | { verb: 'adopt'; workerId: string; leaseId: string; outcomeHash: string }
  | { verb: 'cancel' }

/** The outcome hash of a run that was released while RUNNING. No report has the same hash. */
export const RELEASED_OUTCOME = 'released'

/** The outcome hash of a run that returned nothing. Most runs return nothing, so a SUCCEEDED run does not store it. */
export const EMPTY_OUTCOME = 'empty'

/** Why a command was refused; each is a code of the error table. */
export type RunRefusal =
  | 'NOT_DUE'
  | 'LEASE_LOST'
  | 'NOT_ASSIGNED'
  | 'NOT_STARTED'
  | 'VERSION_MISMATCH'
  | 'EPOCH_MISMATCH'
  | 'OUTCOME_ALREADY_RECORDED'
  | 'ALREADY_ENDED'

export type Decision =
  | { kind: 'move'; to: RunState }
  /** The command was carried out before: the answer is the same, and nothing changes. */
  | { kind: 'repeat' }
  /** Accepted without a transition: a heartbeat, or a cancel request on a RUNNING run. */
  | { kind: 'note' }
  | { kind: 'refuse'; reason: RunRefusal }

const refuse = (reason: RunRefusal): Decision => ({ kind: 'refuse', reason })

function allows(verb: Verb, state: RunState): boolean {
  return (TRANSITIONS[verb].from as readonly RunState[]).includes(state)
}

function holds(run: Pick<RunFacts, 'workerId' | 'leaseId'>, command: { workerId: string; leaseId: string }): boolean {
  return run.workerId === command.workerId && run.leaseId === command.leaseId
}

/** A report on a run that has ended: a repeat, or another outcome. */
function again(run: RunFacts, outcomeHash: string): Decision {
  if (run.outcomeHash === null) return refuse('ALREADY_ENDED')
  return run.outcomeHash === outcomeHash ? { kind: 'repeat' } : refuse('OUTCOME_ALREADY_RECORDED')
}

export function decide(run: RunFacts, command: RunCommand, nowMs: number): Decision {
  switch (command.verb) {
    case 'lease':
      if (!allows('lease', run.state)) return refuse(isFinal(run.state) ? 'ALREADY_ENDED' : 'LEASE_LOST')
      return run.runAtMs > nowMs ? refuse('NOT_DUE') : { kind: 'move', to: TRANSITIONS.lease.to }

    case 'start':
      if (!holds(run, command)) return refuse('LEASE_LOST')
      if (run.state === 'RUNNING') return run.startId === command.startId ? { kind: 'repeat' } : refuse('NOT_ASSIGNED')
      if (!allows('start', run.state)) return refuse(isFinal(run.state) ? 'ALREADY_ENDED' : 'LEASE_LOST')
      if (command.version !== undefined && command.version !== run.version) return refuse('VERSION_MISMATCH')
      return { kind: 'move', to: TRANSITIONS.start.to }

    case 'adopt': {
      const { before } = run
      if (before === undefined || !holds(before, command) || before.state !== 'TIMED_OUT') return refuse('LEASE_LOST')
      const adopted = run.workerId === command.workerId && run.startId === command.leaseId
      if (isFinal(run.state)) return adopted ? again(run, command.outcomeHash) : refuse('ALREADY_ENDED')
      // Only if no worker got the job since.
      const untouched = allows('adopt', run.state) && run.workerId === null
      return untouched ? { kind: 'move', to: TRANSITIONS.adopt.to } : refuse('LEASE_LOST')
    }

    case 'finish':
    case 'fail':
      if (!holds(run, command)) return refuse('LEASE_LOST')
      if (isFinal(run.state)) return again(run, command.outcomeHash)
      if (run.state === 'ASSIGNED') return refuse('NOT_STARTED')
      if (!allows(command.verb, run.state)) return refuse('LEASE_LOST')
      if (command.version !== undefined && command.version !== run.version) return refuse('VERSION_MISMATCH')
      if (command.leaderEpoch !== undefined && command.leaderEpoch !== run.leaderEpoch) return refuse('EPOCH_MISMATCH')
      return { kind: 'move', to: run.cancelRequestedAtMs === null ? TRANSITIONS[command.verb].to : 'CANCELED' }

    case 'heartbeat':
      if (!holds(run, command)) return refuse('LEASE_LOST')
      if (isFinal(run.state)) return refuse('ALREADY_ENDED')
      // An orphan still names its last holder, but any worker can lease it.
      return LEASED_STATES.includes(run.state) ? { kind: 'note' } : refuse('LEASE_LOST')

    case 'release':
      if (!holds(run, command)) return refuse('LEASE_LOST')
      if (isFinal(run.state)) return run.outcomeHash === RELEASED_OUTCOME ? { kind: 'repeat' } : refuse('ALREADY_ENDED')
      if (run.state === TRANSITIONS.release.to) return { kind: 'repeat' }
      if (allows('release', run.state)) return { kind: 'move', to: TRANSITIONS.release.to }
      if (!allows('releaseRunning', run.state)) return refuse('LEASE_LOST')
      return { kind: 'move', to: run.cancelRequestedAtMs === null ? TRANSITIONS.releaseRunning.to : 'CANCELED' }

    case 'cancel':
      if (run.state === 'CANCELED') return { kind: 'repeat' }
      if (isFinal(run.state)) return refuse('ALREADY_ENDED')
      return allows('cancel', run.state) ? { kind: 'move', to: TRANSITIONS.cancel.to } : { kind: 'note' }
  }
}

export const LOG_STREAMS = ['stdout', 'stderr'] as const

/** The stream of the worker's process that a log chunk came from. */
export type LogStream = (typeof LOG_STREAMS)[number]

/** Why a run has ended without success. */
export interface RunError {
  code: string
  message: string
  traceback?: string | undefined
}

/** The errors of runs that the leader ends after they have started. */
export const WORKER_LOST: RunError = { code: 'WORKER_LOST', message: 'The worker was silent until its lease expired' }
export const WORKER_REVOKED: RunError = { code: 'WORKER_REVOKED', message: 'The worker was revoked during the run' }
export const TIMEOUT: RunError = { code: 'TIMEOUT', message: 'The run took longer than its timeout_seconds' }

/** Checks the error of a run that was stored as JSON; null when the run has none. */
export const parseRunError = stored(
  'error',
  orNull(isObjectOf<RunError>({ code: isText, message: isText, traceback: orMissing(isText) })),
)
