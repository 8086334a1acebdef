import { type Command, command } from '../port.ts'
import { now, one, query, type SqlValue, type Work } from '../statement.ts'
import { countNow } from './count-now.ts'
import { readLeadership, renewLeadership, resignLeadership, takeLeadership } from './leadership.sql.ts'

/** Fences every write of a leader. */
export interface Term {
  /** Names the node, and differs after each restart of it. */
  holder: string
  epoch: number
}

export interface LeadershipStatus {
  /** Of the row: ours when `held`. */
  epoch: number
  held: boolean
  /** The store's clock. */
  nowMs: number
  /** Changes when the database restarts or fails over. */
  server: string
}

/** For a statement that takes its parameters by their places. */
export const fence = ({ epoch, holder }: Term): readonly SqlValue[] => [epoch, holder]

/** Takes the leadership if no node has it. After an uncertain commit the same node takes it again. */
export function tryToLead(holder: string, ttlMs: number): Command<LeadershipStatus> {
  return command('take_leadership', function* work(): Work<LeadershipStatus> {
    const taken = yield* one(takeLeadership, { holder, ttl_ms: ttlMs })
    if (taken !== undefined) yield* countNow('leader_changes', 1)
    return yield* standing(taken !== undefined)
  })
}

export function renewTerm(term: Term, ttlMs: number): Command<LeadershipStatus> {
  return command('renew_leadership', function* work(): Work<LeadershipStatus> {
    const renewed = yield* one(renewLeadership, { ...term, ttl_ms: ttlMs })
    return yield* standing(renewed !== undefined)
  })
}

export function resignTerm(term: Term): Command<boolean> {
  return command('resign_leadership', function* work(): Work<boolean> {
    return (yield* query(resignLeadership, term)).length > 0
  })
}

export function readClock(): Command<number> {
  return command('clock', now)
}

function* standing(held: boolean): Work<LeadershipStatus> {
  const row = yield* one(readLeadership, {})
  if (row === undefined) throw new Error('The leadership has no row')
  return { epoch: row.epoch, held, nowMs: row.now, server: row.server }
}
