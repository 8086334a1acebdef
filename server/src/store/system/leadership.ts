import { type Command, command, commandIn } from '../port.ts'
import { now, one, query, statement, type Work } from '../statement.ts'
import { countNow } from './minute-counts.ts'
import { TERM, type Term } from './term.ts'

/**
 * Guards that there is no leader, or that its term has expired. An expiry too far ahead was written before the clock went
 * back. Each leader gets an epoch of its own.
 */
const takeLeadership = statement('take_leadership', {
  params: { holder: 'text', ttl_ms: 'integer' },
  row: { epoch: 'integer' },
  sql: `UPDATE ichido.leadership SET holder = $holder, epoch = epoch + 1, expires_at = now_ms() + $ttl_ms
    WHERE id = 1 AND (holder IS NULL OR holder = $holder OR expires_at <= now_ms() OR expires_at > now_ms() + 2 * $ttl_ms)
    RETURNING epoch`,
})

const renewLeadership = statement('renew_leadership', {
  params: { ...TERM, ttl_ms: 'integer' },
  row: { epoch: 'integer' },
  sql: `UPDATE ichido.leadership SET expires_at = now_ms() + $ttl_ms WHERE epoch = $epoch AND holder = $holder
    RETURNING epoch`,
})

/** The epoch stays: the next leader raises it. */
const resignLeadership = statement('resign_leadership', {
  params: TERM,
  row: { epoch: 'integer' },
  sql: `UPDATE ichido.leadership SET holder = NULL, expires_at = 0 WHERE epoch = $epoch AND holder = $holder
    RETURNING epoch`,
})

/** For a leader that has died. */
export const vacateLeadership = statement('vacate_leadership', {
  params: {},
  row: { epoch: 'integer' },
  sql: 'UPDATE ichido.leadership SET holder = NULL, expires_at = 0 WHERE id = 1 AND holder IS NOT NULL RETURNING epoch',
})

/** `server` is the start time of the database's server: no two servers start at the same microsecond. */
export const readLeadership = statement('read_leadership', {
  params: {},
  row: { epoch: 'integer', holder: 'text?', now: 'integer', server: 'text' },
  postgres: `SELECT epoch, holder, now_ms() AS now, extract(epoch FROM pg_postmaster_start_time())::text AS server
    FROM ichido.leadership WHERE id = 1`,
  sqlite: `SELECT epoch, holder, now_ms() AS now, '' AS server FROM ichido.leadership WHERE id = 1`,
})

/** `present` is 0 if there is no leader, or its term has expired. */
const readSystem = statement('read_system', {
  params: {},
  row: { epoch: 'integer', present: 'integer', version: 'text', bytes: 'integer' },
  postgres: `SELECT epoch, CASE WHEN holder IS NOT NULL AND expires_at > now_ms() THEN 1 ELSE 0 END AS present,
      current_setting('server_version') AS version, pg_database_size(current_database()) AS bytes
    FROM ichido.leadership WHERE id = 1`,
  sqlite: `SELECT epoch, CASE WHEN holder IS NOT NULL AND expires_at > now_ms() THEN 1 ELSE 0 END AS present,
      sqlite_version() AS version,
      (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size) AS bytes
    FROM ichido.leadership WHERE id = 1`,
})

export interface StoreFacts {
  epoch: number
  /** A node leads now. */
  present: boolean
  /** Of the engine. */
  version: string
  bytes: number
}

export function findStoreFacts(): Command<StoreFacts> {
  return command('find_system', function* work(): Work<StoreFacts> {
    const row = yield* one(readSystem, {})
    if (row === undefined) throw new Error('The leadership has no row')
    return { ...row, present: row.present === 1 }
  })
}

export interface LeadershipStatus {
  /** The epoch of the row; it is ours if `held`. */
  epoch: number
  held: boolean
  /** The store's clock. */
  nowMs: number
  /** Changes when the database restarts or fails over. */
  server: string
}

/** Takes the leadership if no node has it. After an uncertain commit the same node takes it again. */
export function tryToLead(holder: string, ttlMs: number): Command<LeadershipStatus> {
  return commandIn('urgent', 'take_leadership', function* work(): Work<LeadershipStatus> {
    const taken = yield* one(takeLeadership, { holder, ttl_ms: ttlMs })
    if (taken !== undefined) yield* countNow('leader_changes', 1)
    return yield* readStatus(taken !== undefined)
  })
}

export function renewTerm(term: Term, ttlMs: number): Command<LeadershipStatus> {
  return commandIn('urgent', 'renew_leadership', function* work(): Work<LeadershipStatus> {
    const renewed = yield* one(renewLeadership, { ...term, ttl_ms: ttlMs })
    return yield* readStatus(renewed !== undefined)
  })
}

export function resignTerm(term: Term): Command<boolean> {
  return commandIn('urgent', 'resign_leadership', function* work(): Work<boolean> {
    return (yield* query(resignLeadership, term)).length > 0
  })
}

export function readClock(): Command<number> {
  return command('clock', now)
}

function* readStatus(held: boolean): Work<LeadershipStatus> {
  const row = yield* one(readLeadership, {})
  if (row === undefined) throw new Error('The leadership has no row')
  return { epoch: row.epoch, held, nowMs: row.now, server: row.server }
}

/** A restored database begins a new term, so that nothing from after the backup can still be written to it. */
const addToEpoch = statement('raise_epoch', {
  params: { by: 'integer' },
  row: { epoch: 'integer' },
  sql: 'UPDATE ichido.leadership SET epoch = epoch + $by, holder = NULL, expires_at = 0 WHERE id = 1 RETURNING epoch',
})

export function raiseEpoch(by: number): Command<number> {
  return command('raise_epoch', function* work(): Work<number> {
    const raised = yield* one(addToEpoch, { by })
    if (raised === undefined) throw new Error('There is no row of the leadership')
    return raised.epoch
  })
}
