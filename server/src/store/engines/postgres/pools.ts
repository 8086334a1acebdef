import type pg from 'pg'
import type { Command } from '../../port.ts'

/** What comes in batches, a few at a time: however many calls of other sorts somebody makes, these find a connection. */
const BATCHED: ReadonlySet<string> = new Set([
  ...['submit', 'lease', 'start', 'finish', 'release', 'publish'],
  // A batch of submits asks for them first, one after the other.
  ...['claim_user_names', 'find_last_tags'],
])
const BATCHED_MAX = 5
/** Wait for rows of users, which an application may keep: however many of them do, what the leader has to do goes on. */
const OF_USERS: ReadonlySet<string> = new Set([
  ...['reserve', 'consume', 'release_reservation', 'put_quota', 'delete_quota', 'cancel', 'retry', 'run_definition'],
  ...['redrive', 'make_ticks', 'try_waiting_ticks', 'backfill', 'logs', 'open_upload', 'complete_upload', 'delete_job'],
])
const OF_USERS_MAX = 3
const OTHERS_MAX = 3
/**
 * Have connections of their own: a user whose row somebody keeps locked can hold up all the others for seconds, and by then
 * every worker's leases would lapse and the leader lose its term.
 */
const URGENT: ReadonlySet<string> = new Set(['heartbeat', 'take_leadership', 'renew_leadership', 'resign_leadership'])
const URGENT_MAX = 2

/** The connections that write, apart from each other by what they may have to wait for. */
export function openPools(writers: (max: number) => pg.Pool): {
  all: readonly pg.Pool[]
  of(command: Pick<Command<unknown>, 'name'>): pg.Pool
} {
  const batched = writers(BATCHED_MAX)
  const ofUsers = writers(OF_USERS_MAX)
  const others = writers(OTHERS_MAX)
  const urgent = writers(URGENT_MAX)
  return {
    all: [batched, ofUsers, others, urgent],
    of({ name }) {
      if (URGENT.has(name)) return urgent
      if (BATCHED.has(name)) return batched
      return OF_USERS.has(name) ? ofUsers : others
    },
  }
}
