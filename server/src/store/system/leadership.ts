import { type Command, command } from '../port.ts'
import { integer, now, one, query, type SqlValue, text, type Work } from '../statement.ts'
import { countNow } from './count-now.ts'
import { readLeadership, renewLeadership, resignLeadership, takeLeadership } from './leadership.sql.ts'

/** What every write of a leader is fenced by. */
export interface Term {
  /** The node, in this life of it. */
  holder: string
  epoch: number
}

export interface LeadershipStatus {
  /** Of the row: ours when `held`. */
  epoch: number
  held: boolean
  /** What the store's clock showed. */
  nowMs: number
  /** Another one after a restart or a failover of the database. */
  server: string
}

/** A term's first two parameters in every statement that is fenced by it. */
export const fence = ({ epoch, holder }: Term): readonly SqlValue[] => [epoch, holder]

/** Takes leadership if nobody has it. An unheard success before this try is simply taken again. */
export function tryToLead(holder: string, ttlMs: number): Command<LeadershipStatus> {
  return command('take_leadership', function* work(): Work<LeadershipStatus> {
    const taken = yield* one(takeLeadership, holder, ttlMs)
    if (taken !== undefined) yield* countNow('leader_changes', 1)
    return yield* standing(taken !== undefined)
  })
}

export function renewTerm(term: Term, ttlMs: number): Command<LeadershipStatus> {
  return command('renew_leadership', function* work(): Work<LeadershipStatus> {
    const renewed = yield* one(renewLeadership, ...fence(term), ttlMs)
    return yield* standing(renewed !== undefined)
  })
}

export function resignTerm(term: Term): Command<boolean> {
  return command('resign_leadership', function* work(): Work<boolean> {
    return (yield* query(resignLeadership, ...fence(term))).length > 0
  })
}

export function readClock(): Command<number> {
  return command('clock', now)
}

function* standing(held: boolean): Work<LeadershipStatus> {
  const row = yield* one(readLeadership)
  return { epoch: integer(row, 'epoch'), held, nowMs: integer(row, 'now'), server: text(row, 'server') }
}
