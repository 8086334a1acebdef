import { type Command, command } from '../port.ts'
import { exactlyOne, type Work } from '../statement.ts'
import * as sql from './restored-events.sql.ts'

/** Of one transaction: each row is written anew. */
const BATCH_MAX = 10_000

/**
 * A dump that was restored into a younger PostgreSQL brings transactions that are still to come there: until then its events
 * would not be listed among those of all jobs, and later amid newer ones. True while there may be more of them.
 */
export function adoptRestoredEvents(batchMax: number = BATCH_MAX): Command<boolean> {
  return command('adopt_restored_events', function* work(): Work<boolean> {
    return (yield* exactlyOne(sql.redateEvents, { max: batchMax })).found === batchMax
  })
}
