import type { StoredEvent } from '../../core/event.ts'
import type { JobPolicy } from '../../core/job.ts'
import type { RunRefusal, RunState } from '../../core/run-state.ts'
import { type EventRules, eventRules, seqProblem, storedSeq } from '../../core/seq.ts'
import { type Command, command } from '../port.ts'
import * as sql from '../sql/events.ts'
import { readFacts } from '../sql/runs.ts'
import { each, integer, one, query, type Row, text, type Work } from '../statement.ts'
import { foldBy } from './fold.ts'
import { explain } from './run-facts.ts'

export interface PublishItem {
  runId: string
  workerId: string
  leaseId: string
  /** `data` is JSON text. */
  events: readonly { stage: string; seq: number; data: string }[]
}

export type PublishOutcome =
  /** For each event what was stored; null: it was there before. */
  | { kind: 'stored'; jobId: string; events: (StoredEvent | null)[] }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }
  /** Nothing of the item was stored. */
  | { kind: 'invalid'; field: string; message: string }

/** An event of somebody who may publish it. */
interface Wanted extends Omit<StoredEvent, 'n' | 'createdAtMs'> {
  runId: string
  lastN: number
}

/**
 * (job, stage, seq) is stored once: who comes first is stored, whatever the data of the others. The cursor is raised under the
 * run's row lock, so that readers never skip an event. An item is published as a whole or not at all, and none fails another.
 */
export function publishBatch(items: readonly PublishItem[]): Command<PublishOutcome[]> {
  /** Of tries whose commit may not have been heard of. */
  const transactions = new Set<number>()
  return command('publish', function* work(again): Work<PublishOutcome[]> {
    const { firsts } = foldBy(items, holderOf)
    const rows = yield* each(
      sql.lockPublishers,
      firsts.map((item) => [item.runId, item.workerId, item.leaseId]),
    )
    const publishers = new Map(rows.map((row) => [holderIn(row), row]))
    const refusals = yield* refuse(firsts.filter((item) => !publishers.has(holderOf(item))))
    const read = items.map((item) => refusals.get(holderOf(item)) ?? wantedOf(item, publishers.get(holderOf(item))))
    const events = read.flatMap((one) => (one.kind === 'wanted' ? one.events : []))
    const { firsts: wanted } = foldBy(events, identityOf)
    const unheard = again ? yield* storedBy(transactions, wanted) : []
    const stored = new Map([...unheard, ...(yield* insert(wanted))].map((row) => [identityIn(row), row]))
    for (const row of rows) transactions.add(integer(row, 'tx'))
    return read.map((one): PublishOutcome => {
      if (one.kind !== 'wanted') return one
      return { kind: 'stored', jobId: one.jobId, events: one.events.map((event) => claim(stored, event)) }
    })
  })
}

const holderOf = ({ runId, workerId, leaseId }: PublishItem) => JSON.stringify([runId, workerId, leaseId])
const holderIn = (row: Row) => JSON.stringify([text(row, 'run_id'), text(row, 'worker_id'), text(row, 'lease_id')])
const identityOf = ({ jobId, stage, seq }: Wanted) => JSON.stringify([jobId, stage, seq])
const identityIn = (row: Row) => JSON.stringify([text(row, 'job_id'), text(row, 'stage'), integer(row, 'seq')])

function* refuse(strangers: readonly PublishItem[]): Work<Map<string, PublishOutcome>> {
  const rows = yield* each(
    readFacts,
    strangers.map((item) => [item.runId]),
  )
  const facts = new Map(rows.map((row) => [text(row, 'id'), row]))
  return new Map(
    strangers.map((item) => {
      const { workerId, leaseId } = item
      const reason = explain(facts.get(item.runId), { verb: 'heartbeat', workerId, leaseId })
      return [holderOf(item), { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }]
    }),
  )
}

function wantedOf(
  { runId, events }: PublishItem,
  row: Row | undefined,
): { kind: 'wanted'; jobId: string; events: Wanted[] } | Extract<PublishOutcome, { kind: 'invalid' }> {
  const rules = eventRules(text(row, 'kind'), JSON.parse(text(row, 'policy')) as JobPolicy)
  const [jobId, attempt, lastN] = [text(row, 'job_id'), integer(row, 'attempt'), integer(row, 'last_event_n')]
  for (const [i, { stage, seq }] of events.entries()) {
    const problem = seqProblem(rules, stage, seq)
    if (problem !== null) return { kind: 'invalid', field: `events.${i}.seq`, message: problem }
  }
  const { domain, seqScope } = rules
  return {
    kind: 'wanted',
    jobId,
    events: events.map(({ stage, seq, data }) => {
      return { runId, lastN, jobId, domain, stage, seq: storedSeq(seqScope, attempt, seq), data }
    }),
  }
}

function* storedBy(transactions: ReadonlySet<number>, wanted: readonly Wanted[]): Work<Row[]> {
  const rows = yield* each(
    sql.readPublished,
    wanted.map(({ jobId, stage, seq }) => [jobId, stage, seq]),
  )
  return rows.filter((row) => transactions.has(integer(row, 'tx')))
}

function insert(wanted: readonly Wanted[]): Work<Row[]> {
  return each(
    sql.insertEvents,
    wanted.map(({ runId, lastN, jobId, stage, seq, domain, data }) => [runId, lastN, jobId, stage, seq, domain, data]),
  )
}

/** Of events that are the same, the first one takes what was stored. */
function claim(stored: Map<string, Row>, event: Wanted): StoredEvent | null {
  const identity = identityOf(event)
  const row = stored.get(identity)
  if (row === undefined) return null
  stored.delete(identity)
  const { jobId, domain, stage, seq, data } = event
  return { jobId, domain, n: integer(row, 'n'), stage, seq, data, createdAtMs: integer(row, 'created_at') }
}

export interface EventRows {
  userId: string
  state: RunState
  events: Row[]
  lastN: number
}

export function findEvents(jobId: string, after: number, max: number): Command<EventRows | null> {
  return command('find_events', function* work(): Work<EventRows | null> {
    // The end is read first: an event that comes in between is then one more, never one less than promised.
    const end = yield* one(sql.readEventEnd, jobId)
    if (end === undefined) return null
    const events = yield* query(sql.readEvents, jobId, after, max)
    const [userId, state] = [text(end, 'user_id'), text(end, 'state') as RunState]
    return { userId, state, events, lastN: integer(end, 'last_event_n') }
  })
}

export interface LatestState {
  userId: string
  rules: EventRules
  state: RunState
  attempt: number
  /** The last of all, if any is kept. */
  last: Row | undefined
  /** The last one of each stage that workers publish in. */
  stages: Row[]
}

export function findLatestState(jobId: string): Command<LatestState | null> {
  return command('find_latest_state', function* work(): Work<LatestState | null> {
    const end = yield* one(sql.readEventEnd, jobId)
    if (end === undefined) return null
    const stages = yield* query(sql.readLastOfStages, jobId)
    const last = yield* one(sql.readEvents, jobId, integer(end, 'last_event_n') - 1, 1)
    return {
      userId: text(end, 'user_id'),
      rules: eventRules(text(end, 'kind'), JSON.parse(text(end, 'policy')) as JobPolicy),
      state: text(end, 'state') as RunState,
      attempt: integer(end, 'attempt'),
      last,
      stages,
    }
  })
}
