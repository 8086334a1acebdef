import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { lockRuns, readLatest } from '../dead-letters/dead-letters.sql.ts'
import { each, type Row, text, textOrNull, type Work } from '../statement.ts'

/** Why a job can be neither retried nor replaced. */
export type EndedRefusal =
  | { reason: 'NOT_FOUND' }
  | { reason: 'NOT_ENDED'; state: RunState; canceling: boolean }
  | { reason: 'ALREADY_ENDED'; state: RunState }
  | { reason: 'ALREADY_REPLACED'; byJobId: string }

/** Takes what `readLatest` says of a job; null: it can. */
export function refusalOf(row: Row | undefined): EndedRefusal | null {
  if (row === undefined) return { reason: 'NOT_FOUND' }
  const state = text(row, 'state') as RunState
  if (!isFinal(state)) return { reason: 'NOT_ENDED', state, canceling: row.cancel_requested_at !== null }
  if (state === 'SUCCEEDED') return { reason: 'ALREADY_ENDED', state }
  const byJobId = textOrNull(row, 'replaced_by')
  return byJobId === null ? null : { reason: 'ALREADY_REPLACED', byJobId }
}

/**
 * Locks the latest runs of those jobs that can be retried or replaced: of all that want to, one has the job at a time. Read
 * anew by a statement of its own, for the one that locks has not seen what the one before wrote.
 */
export function* lockEnded(jobIds: Iterable<string>): Work<Map<string, Row>> {
  const ids = [...new Set(jobIds)].map((id) => [id])
  const locked = new Set<string>()
  for (;;) {
    const rows = yield* each(readLatest, ids)
    const open = rows.filter((row) => refusalOf(row) === null && !locked.has(text(row, 'run_id')))
    if (open.length === 0) return new Map(rows.map((row) => [text(row, 'job_id'), row]))
    for (const row of yield* each(
      lockRuns,
      open.map((row) => [text(row, 'run_id')]),
    ))
      locked.add(text(row, 'id'))
  }
}
