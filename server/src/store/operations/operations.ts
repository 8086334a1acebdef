import type { OperationAction } from '@ichido/sdk/protocol'
import { record } from '../access/audit.ts'
import { type DeadFilter, renderFilter } from '../dead-letters/dead-letters.ts'
import { readLatest } from '../jobs/ended-jobs.ts'
import { type JobFilter, renderJobFilter, type StateCount, statesCounted } from '../jobs/list-jobs.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { each, exactlyOne, one, query, type SqlValue, select, type Work } from '../statement.ts'
import { countsOf, type Operation, toOperation } from './operation.ts'
import * as sql from './operations.sql.ts'
import { matching, matchingStates } from './redrive-step.ts'

export type { Operation } from './operation.ts'

/** The jobs of an operation: all that match the filter, or those of the list that belong to the user of the filter. */
export type Choice = { jobIds: readonly string[] | null } & (
  | { action: 'redrive'; filter: DeadFilter }
  /** The filter names states that the action can change. */
  | { action: 'cancel' | 'retry'; filter: JobFilter }
)

export type NewOperation = Choice & {
  operationId: string
  auditId: string
  actor: string
  perSecond: number | null
}

/** The jobs that an operation would change now, by state, up to `max` of each. */
export function countChoice(choice: Choice, max: number): Command<StateCount[]> {
  return command('count_choice', function* work(): Work<StateCount[]> {
    const { action, filter, jobIds } = choice
    if (action === 'redrive') return yield* matchingStates(filter, jobIds, max)
    if (jobIds === null) return yield* statesCounted(filter, max)
    const states = new Map<string, number>()
    for (const { state } of yield* changeable(jobIds, filter)) states.set(state, (states.get(state) ?? 0) + 1)
    return [...states].map(([state, count]) => ({ state, count, capped: false }))
  })
}

/** The jobs of a list that an action can change. */
function* changeable(jobIds: readonly string[], { userId, states }: JobFilter) {
  const ids = [...new Set(jobIds)].sort().map((job_id) => ({ job_id }))
  const rows = yield* each(readLatest, ids)
  return rows.filter((row) => states.includes(row.state) && (userId === null || row.user_id === userId))
}

/** With more jobs than this, the leader counts them in steps. */
const COUNTED_MAX = 10_000

/** Marks listed dead letters at once. All jobs that match a filter are marked or counted by the following steps. */
export function beginOperation(item: NewOperation): Command<Operation> {
  return command('begin_operation', function* work(again): Work<Operation> {
    const { operationId, action, actor, perSecond } = item
    const unheard = again ? yield* one(sql.readOperation, { id: operationId }) : undefined
    if (unheard !== undefined) return toOperation(unheard)
    const { jobIds, matched, prepared } = yield* chosen(item)
    yield* query(sql.insertOperation, {
      id: operationId,
      action,
      actor,
      job_filter: action === 'redrive' || jobIds !== null ? null : JSON.stringify(item.filter),
      dead_filter: action !== 'redrive' || jobIds !== null ? null : JSON.stringify(item.filter),
      job_ids: jobIds === null ? null : JSON.stringify(jobIds),
      per_second: perSecond,
      prepared,
      matched,
    })
    const operation = toOperation(yield* exactlyOne(sql.readOperation, { id: operationId }))
    const asked = jobIds === null ? { filter: renderedFilter(operation) } : { job_ids: item.jobIds }
    const after = { ...asked, matched, per_second: perSecond }
    yield* record({ id: item.auditId, actor }, `${action}.begin`, operationId, null, after)
    return operation
  })
}

function* chosen(item: NewOperation): Work<Pick<Operation, 'jobIds' | 'matched' | 'prepared'>> {
  if (item.action === 'redrive') {
    if (item.jobIds === null) return { jobIds: null, matched: yield* matching(item.filter, null), prepared: false }
    const listed = [...new Set(item.jobIds)].sort()
    const rows = listed.map((jobId) => ({ redrive_id: item.operationId, job_id: jobId, user_id: item.filter.userId }))
    const jobIds = (yield* each(sql.markListed, rows)).map(({ job_id }) => job_id)
    return { jobIds, matched: jobIds.length, prepared: true }
  }
  if (item.jobIds !== null) {
    const jobIds = (yield* changeable(item.jobIds, item.filter)).map(({ job_id }) => job_id).sort()
    return { jobIds, matched: jobIds.length, prepared: true }
  }
  const counts = yield* statesCounted(item.filter, COUNTED_MAX)
  const matched = counts.reduce((sum, { count }) => sum + count, 0)
  return { jobIds: null, matched, prepared: !counts.some(({ capped }) => capped) }
}

/** The filter as callers write it, for answers and the audit; null: the operation has a list of jobs. */
export function renderedFilter({ deadFilter, jobFilter }: Pick<Operation, 'deadFilter' | 'jobFilter'>) {
  if (jobFilter !== null) return renderJobFilter(jobFilter)
  return deadFilter === null ? null : renderFilter(deadFilter)
}

/** Returns null if the operation has ended. It waits for a running step, and no step follows. */
export function abortOperation(operationId: string, actor: string, auditId: string): Command<Operation | null> {
  return command('abort_operation', function* work(): Work<Operation | null> {
    const row = yield* one(sql.endOperation, { id: operationId, state: 'aborted' })
    if (row === undefined) return null
    const operation = toOperation(row)
    yield* record({ id: auditId, actor }, `${operation.action}.abort`, operationId, null, countsOf(operation))
    return operation
  })
}

export function findOperation(operationId: string): Command<Operation | null> {
  return command('find_operation', function* work(): Work<Operation | null> {
    const row = yield* one(sql.readOperation, { id: operationId })
    return row === undefined ? null : toOperation(row)
  })
}

/** Newest first. @param action null: any. */
export function listOperations(
  actor: string | null,
  action: OperationAction | null,
  limit: number,
  after: string | null,
): Command<Listed<Operation>> {
  return command('list_operations', function* work(): Work<Listed<Operation>> {
    const params: SqlValue[] = []
    const where = ['true']
    if (actor !== null) where.push(`actor = $${params.push(actor)}`)
    if (action !== null) where.push(`action = $${params.push(action)}`)
    if (after !== null) where.push(`id < $${params.push(after)}`)
    const list = `SELECT ${sql.OPERATION_COLUMNS} FROM ichido.operations WHERE ${where.join(' AND ')}
      ORDER BY id DESC LIMIT ${limit + 1}`
    const rows = (yield* select(sql.OPERATION_ROW, list, params)).map(toOperation)
    return pageOf(rows, limit, ({ operationId }) => operationId)
  })
}

interface RunningOperation {
  operationId: string
  version: number
  /** The time until it may continue; 0 or less: now. */
  inMs: number
}

export function runningOperations(max: number): Command<RunningOperation[]> {
  return command('running_operations', function* work(): Work<RunningOperation[]> {
    const rows = yield* query(sql.readRunning, { max })
    return rows.map(({ id, version, in_ms }) => ({ operationId: id, version, inMs: in_ms }))
  })
}
