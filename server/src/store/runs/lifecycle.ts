import type { RunState } from '../../core/run/run-state.ts'
import { each, statement, type Work } from '../statement.ts'

/** An event about a run, written in the transaction that moves the run. */
const insertLifecycle = statement('insert_lifecycle', {
  params: { job_id: 'text', n: 'integer', data: 'text' },
  row: {},
  postgres: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT t.job_id, t.n, 'run', t.n, '', t.data, now_ms()
    FROM unnest($job_id::uuid[], $n::bigint[], $data::text[]) AS t(job_id, n, data)`,
  sqlite: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    VALUES ($job_id, $n, 'run', $n, '', $data, now_ms())`,
})

/** A run as the statement that moved it says. */
interface Moved {
  readonly job_id: string
  readonly last_event_n: number
  readonly state: RunState
  readonly attempt: number
}

/** Writes an event about each move, under the number that the moving statement gave out. */
export function* recordMoves(rows: readonly Moved[]): Work<void> {
  yield* each(
    insertLifecycle,
    rows.map(({ job_id, last_event_n, state, attempt }) => ({
      job_id,
      n: last_event_n,
      data: JSON.stringify({ state, attempt }),
    })),
  )
}
