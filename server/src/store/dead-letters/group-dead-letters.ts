import { type Command, command } from '../port.ts'
import { now, type SqlValue, type Values, type Work } from '../statement.ts'
import { ask, conditions, type DeadFilter } from './dead-letters.ts'

const GROUP_ROW = {
  queue: 'text',
  kind: 'text',
  error_code: 'text',
  count: 'integer',
  first_dead_at: 'integer',
  last_dead_at: 'integer',
  sample_message: 'text',
} as const

/** A group, and how many of its dead letters each step has. */
export type DeadGroup = Values<typeof GROUP_ROW> & { counts: number[] }

export interface DeadGroups {
  rows: DeadGroup[]
  fromMs: number
  stepMs: number
}

const STEPS = 24
const MINUTE_MS = 60_000
/** The longest one shows a week. */
const STEP_MINUTES = [1, 5, 15, 60, 180, 420]

/**
 * The largest groups first. Dead letters of one queue, kind and error code mostly have one cause. All groups have the same steps,
 * up to now: the shortest that reach the oldest dead letter, or a week. They begin at multiples of their length, so that a second
 * call counts in the same steps.
 */
export function groupDeadLetters(filter: DeadFilter, limit: number): Command<DeadGroups> {
  return command('group_dead_letters', function* work(): Work<DeadGroups> {
    const params: SqlValue[] = []
    const sql = `SELECT d.queue, d.kind, d.error_code, count(*) AS count, min(d.dead_at) AS first_dead_at,
        max(d.dead_at) AS last_dead_at, min(d.error_message) AS sample_message
      FROM ichido.dead_letters d WHERE ${conditions(filter, params).join(' AND ')}
      GROUP BY d.queue, d.kind, d.error_code ORDER BY count(*) DESC, d.queue, d.kind, d.error_code LIMIT ${limit}`
    const rows = yield* ask(GROUP_ROW, sql, params)
    const nowMs = yield* now()
    const steps = stepsSince(Math.min(nowMs, ...rows.map(({ first_dead_at }) => first_dead_at)), nowMs)
    const counts = yield* countSteps(filter, rows, steps)
    return { rows: rows.map((row) => ({ ...row, counts: counts.get(nameOf(row)) ?? Array(STEPS).fill(0) })), ...steps }
  })
}

function stepsSince(oldestMs: number, nowMs: number): Omit<DeadGroups, 'rows'> {
  const startOf = (stepMs: number) => (Math.floor(nowMs / stepMs) - STEPS + 1) * stepMs
  const all = STEP_MINUTES.map((minutes) => ({ fromMs: startOf(minutes * MINUTE_MS), stepMs: minutes * MINUTE_MS }))
  const longest = all.at(-1) ?? { fromMs: nowMs, stepMs: MINUTE_MS }
  return all.find(({ fromMs }) => fromMs <= oldestMs) ?? longest
}

type GroupName = Pick<DeadGroup, 'queue' | 'kind' | 'error_code'>
/** No part contains a NUL. */
const nameOf = ({ queue, kind, error_code }: GroupName) => [queue, kind, error_code].join('\0')

const STEP_ROW = { queue: 'text', kind: 'text', error_code: 'text', step: 'integer', count: 'integer' } as const

/** Counts only the groups that are shown: there may be as many error codes as dead letters. */
function* countSteps(
  filter: DeadFilter,
  groups: readonly GroupName[],
  { fromMs, stepMs }: Omit<DeadGroups, 'rows'>,
): Work<Map<string, number[]>> {
  const counts = new Map<string, number[]>()
  if (groups.length === 0) return counts
  const params: SqlValue[] = []
  const bind = (value: SqlValue) => `$${params.push(value)}`
  const where = conditions(filter, params)
  where.push(`d.dead_at >= ${bind(fromMs)}`)
  const names = groups.map(({ queue, kind, error_code }) => `(${bind(queue)}, ${bind(kind)}, ${bind(error_code)})`)
  where.push(`(d.queue, d.kind, d.error_code) IN (VALUES ${names.join(', ')})`)
  // SQLite binds large numbers as REAL.
  const step = `CAST((d.dead_at - ${bind(fromMs)}) / ${stepMs} AS bigint)`
  const sql = `SELECT d.queue, d.kind, d.error_code, ${step} AS step, count(*) AS count
    FROM ichido.dead_letters d WHERE ${where.join(' AND ')} GROUP BY 1, 2, 3, 4`
  for (const row of yield* ask(STEP_ROW, sql, params)) {
    const name = nameOf(row)
    const all = counts.get(name) ?? Array<number>(STEPS).fill(0)
    // A dead letter that was made after the first statement may be beyond the last step.
    if (row.step < STEPS) all[row.step] = row.count
    counts.set(name, all)
  }
  return counts
}
