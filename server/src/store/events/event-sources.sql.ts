/**
 * Where are the events? Every event of a worker is a row of `events`. So is every change of a run's state on SQLite. On PostgreSQL
 * the two most frequent changes are told by columns of the run's own row: a lease that starts the run (leased_n, leased_tx), and
 * the run's end (ended_n, ended_tx). The first event of a job is derived from the job.
 */

const COLUMNS = 'tx, job_id, n, stage, seq, domain, data, created_at'

/** The events that the runs of a room tell. */
const toldBy = (room: 'held' | 'ended', move: 'leased' | 'ended', condition: string, more = '') => {
  const [state, at] = move === 'leased' ? ["'RUNNING'", 'started_at'] : ['r.state', 'finished_at']
  const n = `CAST(r.${move}_n AS bigint)`
  return `SELECT ${more}r.${move}_tx AS tx, r.job_id, ${n} AS n, CAST('run' AS text) AS stage, ${n} AS seq, CAST('' AS text) AS domain,
      '{"state":"' || ${state} || '","attempt":' || r.attempt || '}' AS data, r.${at} AS created_at
    FROM ichido.${room} r WHERE ${condition} AND r.${move}_n IS NOT NULL`
}

const TOLD = [
  ['held', 'leased'],
  ['ended', 'leased'],
  ['ended', 'ended'],
] as const

/** PostgreSQL: the events that have no row, in three parts, each with the run_no. */
export const EVENTS_TOLD = TOLD.map(([room, move]) => toldBy(room, move, 'true', 'r.run_no, '))

const fromAll = (condition: (alias: string) => string) => `(
    SELECT ${COLUMNS} FROM ichido.events e WHERE ${condition('e')}
    UNION ALL ${TOLD.map(([room, move]) => toldBy(room, move, condition('r'))).join('\n    UNION ALL ')})`

/** A table expression: the events of all jobs. */
export const ALL_EVENTS = { postgres: fromAll(() => 'true'), sqlite: 'ichido.events' }

/** The same for one job. */
export const eventsOf = {
  postgres: (job: string) => fromAll((alias) => `${alias}.job_id = ${job}`),
  sqlite: (job: string) => `(SELECT * FROM ichido.events WHERE job_id = ${job})`,
}
