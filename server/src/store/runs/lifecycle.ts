import { each, integer, type Row, text, type Work } from '../statement.ts'
import { insertLifecycle } from './runs.sql.ts'

/** Writes what just happened to these runs, under the numbers that the moving statement gave out. */
export function* recordMoves(rows: readonly Row[]): Work<void> {
  yield* each(
    insertLifecycle,
    rows.map((row) => ({
      job_id: text(row, 'job_id'),
      n: integer(row, 'last_event_n'),
      data: JSON.stringify({ state: text(row, 'state'), attempt: integer(row, 'attempt') }),
    })),
  )
}
