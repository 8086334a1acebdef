import type { DeadLetterFilter } from '@ichido/sdk/protocol'
import { escaped, forEngines } from '../jobs/job-filter.sql.ts'
import { countRunning, type DeadFilter } from '../operations/operations.sql.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import {
  exactlyOne,
  one,
  query,
  type RowOf,
  type SqlType,
  type SqlValue,
  select,
  statement,
  type Values,
  type Work,
} from '../statement.ts'

const DEAD_LETTER = 'job_id, run_id, queue, kind, user_id, error_code, error_message, retry_count, dead_at'

export const insertDeadLetters = statement('insert_dead_letters', {
  params: {
    job_id: 'text',
    run_id: 'text',
    queue: 'text',
    kind: 'text',
    user_id: 'text',
    error_code: 'text',
    error_message: 'text',
    retry_count: 'integer',
  },
  row: {},
  postgres: `INSERT INTO ichido.dead_letters (${DEAD_LETTER})
    SELECT t.*, now_ms() FROM unnest($job_id::uuid[], $run_id::uuid[], $queue::text[], $kind::text[], $user_id::text[], $error_code::text[], $error_message::text[],
      $retry_count::integer[]) t`,
  sqlite: `INSERT INTO ichido.dead_letters (${DEAD_LETTER}) VALUES ($job_id, $run_id, $queue, $kind, $user_id, $error_code, $error_message, $retry_count, now_ms())`,
})

const DEAD_LETTER_ROW = { ...insertDeadLetters.params, dead_at: 'integer', redrive_id: 'text?' } as const

const DEAD_LETTER_COLUMNS = Object.keys(DEAD_LETTER_ROW)
  .map((column) => `d.${column}`)
  .join(', ')

const readDeadLetter = statement('read_dead_letter', {
  params: { job_id: 'text' },
  row: DEAD_LETTER_ROW,
  sql: `SELECT ${DEAD_LETTER_COLUMNS} FROM ichido.dead_letters d WHERE d.job_id = $job_id`,
})

/**
 * Counts up to a maximum in each queue, so that a million dead letters are never read. It walks from queue to queue by
 * the index.
 */
const countDead = statement('count_dead', {
  params: { queues_max: 'integer', each_max: 'integer' },
  row: { queue: 'text', count: 'integer', oldest_ms: 'integer?' },
  sql: `WITH RECURSIVE q AS (
      SELECT min(queue) AS queue FROM ichido.dead_letters WHERE queue > ''
      UNION ALL
      SELECT (SELECT min(d.queue) FROM ichido.dead_letters d WHERE d.queue > q.queue) FROM q WHERE q.queue IS NOT NULL)
    SELECT q.queue,
      (SELECT count(*) FROM (SELECT 1 FROM ichido.dead_letters d WHERE d.queue = q.queue LIMIT $each_max) c) AS count,
      (SELECT now_ms() - min(d.dead_at) FROM ichido.dead_letters d WHERE d.queue = q.queue) AS oldest_ms
    FROM q WHERE q.queue IS NOT NULL LIMIT $queues_max`,
})

export type { DeadFilter } from '../operations/operations.sql.ts'

export type DeadLetter = Values<typeof DEAD_LETTER_ROW>

export const EVERY_DEAD_LETTER: DeadFilter = {
  queue: null,
  kind: null,
  errorCode: null,
  userId: null,
  deadFromMs: null,
  deadToMs: null,
  text: null,
}

/** The filter as callers write it, for answers and the audit. */
export function renderFilter(filter: DeadFilter): DeadLetterFilter {
  const { queue, kind, errorCode, userId, deadFromMs, deadToMs } = filter
  return {
    ...(queue === null ? {} : { queue }),
    ...(kind === null ? {} : { kind }),
    ...(errorCode === null ? {} : { error_code: errorCode }),
    ...(userId === null ? {} : { user_id: userId }),
    ...(deadFromMs === null ? {} : { dead_after: new Date(deadFromMs).toISOString() }),
    ...(deadToMs === null ? {} : { dead_before: new Date(deadToMs).toISOString() }),
    ...(filter.text === null ? {} : { text: filter.text }),
  }
}

/** The place where a list of dead letters continues. */
interface DeadPlace {
  deadAtMs: number
  jobId: string
}

/** Newest first. */
export function listDeadLetters(
  filter: DeadFilter,
  limit: number,
  after: DeadPlace | null,
): Command<Omit<Listed<DeadLetter>, 'next'> & { next: DeadPlace | null }> {
  return command('list_dead_letters', function* work() {
    const params: SqlValue[] = []
    const where = conditions(filter, params)
    if (after !== null) {
      const marks = `$${params.push(after.deadAtMs)}, $${params.push(after.jobId)}`
      where.push(`(d.dead_at, d.job_id) < (${marks})`)
    }
    const sql = `SELECT ${DEAD_LETTER_COLUMNS} FROM ichido.dead_letters d WHERE ${where.join(' AND ')}
      ORDER BY d.dead_at DESC, d.job_id DESC LIMIT ${limit + 1}`
    const rows = yield* ask(DEAD_LETTER_ROW, sql, params)
    return pageOf(rows, limit, (row) => ({ deadAtMs: row.dead_at, jobId: row.job_id }))
  })
}

interface DeadLetterRows {
  queues: RowOf<typeof countDead>[]
  operationsRunning: number
}

export function countDeadLetters(queuesMax: number, eachMax: number): Command<DeadLetterRows> {
  return command('count_dead_letters', function* work(): Work<DeadLetterRows> {
    const queues = yield* query(countDead, { queues_max: queuesMax, each_max: eachMax })
    return { queues, operationsRunning: (yield* exactlyOne(countRunning, {})).count }
  })
}

export function findDeadLetter(jobId: string): Command<DeadLetter | undefined> {
  return command('find_dead_letter', () => one(readDeadLetter, { job_id: jobId }))
}

/** The conditions of a filter for a WHERE; its values are added to `params`. */
export function conditions(filter: DeadFilter, params: SqlValue[]): string[] {
  const bind = (value: SqlValue) => `$${params.push(value)}`
  const where = ['true']
  if (filter.queue !== null) where.push(`d.queue = ${bind(filter.queue)}`)
  if (filter.kind !== null) where.push(`d.kind = ${bind(filter.kind)}`)
  if (filter.errorCode !== null) where.push(`d.error_code = ${bind(filter.errorCode)}`)
  if (filter.userId !== null) where.push(`d.user_id = ${bind(filter.userId)}`)
  if (filter.deadFromMs !== null) where.push(`d.dead_at >= ${bind(filter.deadFromMs)}`)
  if (filter.deadToMs !== null) where.push(`d.dead_at < ${bind(filter.deadToMs)}`)
  if (filter.text !== null) where.push(`d.error_message ILIKE ${bind(`%${escaped(filter.text)}%`)} ESCAPE '!'`)
  return where
}

/** Runs SQL with the conditions of a filter. */
export function ask<R extends Columns>(row: R, sql: string, params: readonly SqlValue[]): Work<Values<R>[]> {
  return select(row, forEngines(sql), params)
}

type Columns = Readonly<Record<string, SqlType>>
