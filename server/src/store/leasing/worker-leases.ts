import { type Command, command } from '../port.ts'
import { exactlyOne, type Work } from '../statement.ts'
import { countLeasesOf } from './worker-leases.sql.ts'

/** How many runs a worker holds, counted up to a maximum. */
export function countWorkerLeases(workerId: string, max: number): Command<number> {
  return command('count_worker_leases', function* work(): Work<number> {
    return (yield* exactlyOne(countLeasesOf, { worker_id: workerId, max })).held
  })
}
