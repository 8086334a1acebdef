import type { DeliveryState } from '@ichido/sdk/protocol'
import { idAt } from '../jobs/job-filter.sql.ts'
import { freeBytes, lockOwnersOf } from '../limits/bytes.ts'
import { forgetLogs } from '../logs/archive-logs.ts'
import { type Command, command } from '../port.ts'
import { each, now, query, type RowOf, type Work } from '../statement.ts'
import { deleteOutcomes, deleteTriggers, lockOutlived } from '../triggers/triggers.sql.ts'
import { removeEndedDeliveries } from '../webhooks/deliveries.ts'
import { deriveBeforeRemoval } from '../webhooks/derive-deliveries.ts'
import * as sql from './retention.sql.ts'
import type { Term } from './term.ts'

/** The ages at which ended jobs and dead letters are removed; null: never. */
export interface Ages {
  jobMs: number | null
  letterMs: number | null
}

/** One page of a walk. */
export interface Page {
  /** Jobs of the page whose retention has ended. */
  due: string[]
  /** The start of the next page; null at the end. */
  next: string | null
}

/**
 * Walks through jobs, of all queues or of one, that were created at least `ageMs` ago, oldest first. An id contains the
 * clock of the node that made it: if that clock was ahead, the job is found later.
 */
export function findDueJobs(
  { queue, ageMs, after }: { queue: string | null; ageMs: number; after: string },
  { jobMs, letterMs }: Ages,
  max: number,
): Command<Page> {
  return command('find_due_jobs', function* work(): Work<Page> {
    const page = { after, before: yield* firstAfter(ageMs), max, job_ms: jobMs, letter_ms: letterMs }
    return toPage(
      queue === null ? yield* query(sql.pageOfJobs, page) : yield* query(sql.pageOfQueue, { ...page, queue }),
      max,
    )
  })
}

/** The same for jobs with events. */
export function findDueEvents(ageMs: number, after: string, max: number): Command<Page> {
  return command('find_due_events', function* work(): Work<Page> {
    return toPage(yield* query(sql.pageOfEvents, { after, before: yield* firstAfter(ageMs), max, age_ms: ageMs }), max)
  })
}

/** The smallest id of less than this age. */
function* firstAfter(ageMs: number): Work<string> {
  return idAt((yield* now()) - ageMs + 1)
}

function toPage(rows: readonly RowOf<typeof sql.pageOfJobs>[], max: number): Page {
  return {
    due: rows.flatMap(({ id, due }) => (due ? [id] : [])),
    next: rows.length < max ? null : (rows.at(-1)?.id ?? null),
  }
}

/** A place in the list of dead letters. */
export interface LetterPlace {
  deadAtMs: number
  jobId: string
}

export function findDueLetters(
  ageMs: number,
  after: LetterPlace,
  max: number,
): Command<{ due: string[]; next: LetterPlace | null }> {
  return command('find_due_letters', function* work() {
    const rows = yield* query(sql.pageOfLetters, {
      age_ms: ageMs,
      dead_at: after.deadAtMs,
      job_id: after.jobId,
      max,
    })
    const last = rows.length < max ? undefined : rows.at(-1)
    return {
      due: rows.map(({ id }) => id),
      next: last === undefined ? null : { deadAtMs: last.dead_at, jobId: last.id },
    }
  })
}

interface ResultTtl {
  queue: string
  ttlMs: number
}

/** Finds the queues whose results expire. */
export function findResultTtls(): Command<ResultTtl[]> {
  return command('find_result_ttls', function* work(): Work<ResultTtl[]> {
    return (yield* query(sql.readResultTtls, {})).map(({ name, result_ttl_seconds }) => ({
      queue: name,
      ttlMs: result_ttl_seconds * 1000,
    }))
  })
}

/** The number of removed rows by table. */
type RemovedRows = ReadonlyMap<string, number>

interface Removed {
  rows: RemovedRows
  /** True if a job has more events or logs than one transaction removes. The job is still there. */
  unfinished: boolean
}

/**
 * A job may have a million events, and ten megabytes of log for each run. Several transactions remove them, and the
 * last one removes the job.
 */
const EVENTS_MAX = 5_000
const CHUNKS_MAX = 200

/** Removes those of the jobs whose retention has ended and that are not locked, with all their parts. */
export function removeJobs(term: Term, jobIds: readonly string[], { jobMs, letterMs }: Ages): Command<Removed> {
  return command('remove_jobs', function* work(): Work<Removed> {
    // Users are locked before the term, so that a wait for a user does not block the leader's renewal.
    const locked = yield* lock(term, yield* lockOwnersOf(jobIds))
    if (locked === NO_JOBS) return { rows: new Map(), unfinished: false }
    return yield* removeLocked(locked, () =>
      query(sql.examineJobs, { job_ids: locked, job_ms: jobMs, letter_ms: letterMs }),
    )
  })
}

/**
 * Takes a JSON array of locked jobs, whose users are locked, too. Removes the jobs that `examine` returns once their
 * parts are locked.
 */
export function* removeLocked(locked: string, examine: () => Work<RowOf<typeof sql.examineJobs>[]>): Work<Removed> {
  const rows = new Map<string, number>()
  const letters = new Set((yield* query(sql.lockLetters, { job_ids: locked })).map(({ job_id }) => job_id))
  const keys = new Set((yield* query(sql.lockExpiredKeys, { job_ids: locked })).map(({ job_id }) => job_id))
  const due = (yield* examine()).flatMap((job) => {
    const letterIsHeld = job.letters > 0 && !letters.has(job.id)
    const keyIsHeld = job.expired_keys > 0 && !keys.has(job.id)
    return letterIsHeld || keyIsHeld ? [] : [job.id]
  })
  const ids = { job_ids: JSON.stringify(due) }
  yield* deriveBeforeRemoval(ids.job_ids)
  const events = yield* query(sql.deleteEvents, { ...ids, max: EVENTS_MAX })
  rows.set('events', events.length)
  const logless = yield* forgetLogs(ids.job_ids, CHUNKS_MAX)
  if (events.length === EVENTS_MAX || !logless) return { rows, unfinished: true }
  for (const part of sql.deleteParts) {
    if (part.table !== 'artifacts') {
      rows.set(part.table, (yield* query(part.statement, ids)).length)
      continue
    }
    const removed = yield* query(part.statement, ids)
    rows.set(part.table, removed.length)
    yield* freeBytes(removed)
  }
  const jobs = yield* query(sql.deleteJobs, ids)
  rows.set('jobs', jobs.length)
  yield* freeBytes(jobs)
  return { rows, unfinished: false }
}

/** Removes the events of jobs that ended at least `ageMs` ago. */
export function removeEvents(
  term: Term,
  jobIds: readonly string[],
  ageMs: number,
): Command<{ removed: number; unfinished: boolean }> {
  return command('remove_events', function* work() {
    const locked = yield* lock(term, jobIds)
    if (locked === NO_JOBS) return { removed: 0, unfinished: false }
    const due = (yield* query(sql.examineEvents, { job_ids: locked, age_ms: ageMs })).map(({ id }) => id)
    const ids = { job_ids: JSON.stringify(due) }
    yield* deriveBeforeRemoval(ids.job_ids)
    yield* query(sql.forgetMoves, ids)
    const removed = (yield* query(sql.deleteEvents, { ...ids, max: EVENTS_MAX })).length
    return { removed, unfinished: removed === EVENTS_MAX }
  })
}

const NO_JOBS = '[]'

function* lock(term: Term, jobIds: readonly string[]): Work<string> {
  const rows = yield* query(sql.lockEndedJobs, { ...term, job_ids: JSON.stringify(jobIds) })
  return JSON.stringify(rows.map(({ id }) => id))
}

export function removeAudit(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_audit', function* work(): Work<number> {
    return (yield* query(sql.removeAudit, { ...term, max, age_ms: ageMs })).length
  })
}

/** Removes reservations that ended at least `ageMs` ago, in any way. */
export function removeReservations(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_reservations', function* work(): Work<number> {
    const before = yield* firstAfter(ageMs)
    return (yield* query(sql.removeReservations, { ...term, max, age_ms: ageMs, before })).length
  })
}

/** Triggers that are over for so long, with what the ledger says of them. Their dedupe keys are free again. */
export function removeTriggers(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_triggers', function* work(): Work<number> {
    const outlived = yield* query(lockOutlived, { ...term, max, age_ms: ageMs })
    yield* each(deleteOutcomes, outlived)
    return (yield* each(deleteTriggers, outlived)).length
  })
}

/** Removes deliveries that were delivered, or died, longer ago. */
export function removeDeliveries(term: Term, state: DeliveryState, ageMs: number, max: number): Command<number> {
  return command('remove_deliveries', function* work(): Work<number> {
    return (yield* query(removeEndedDeliveries, { ...term, state, max, age_ms: ageMs })).length
  })
}
