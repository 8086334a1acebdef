import { lockUsersOf } from '../limits/users.ts'
import { type Command, commandIn } from '../port.ts'
import { one, type Work } from '../statement.ts'
import type { Term } from '../system/term.ts'
import { NOTHING, type StepItem, type Stepped, toOperation } from './operation.ts'
import * as sql from './operations.sql.ts'
import { nextLetters, redriveStep } from './redrive-step.ts'
import { nextJobs, ownersOf, walkStep } from './walk-step.ts'

/**
 * Takes one bounded step of an operation, and stores its place in the same transaction. A crash undoes both, and a second
 * leader finds another version, so no job is changed twice. Locks: users, the term, the operation, then as a retry or a
 * cancel. A wait for a user under the lock of the term would block the leader's own renewal.
 */
export function stepOperation(term: Term, item: StepItem): Command<Stepped> {
  return commandIn('users', 'step_operation', function* work(): Work<Stepped> {
    const seen = yield* one(sql.readOperation, { id: item.operationId })
    if (seen === undefined) return NOTHING
    const operation = toOperation(seen)
    const redrives = operation.action === 'redrive'
    const letters = redrives ? yield* nextLetters(operation, item) : []
    const jobs = redrives ? null : yield* nextJobs(operation, item)
    const owners = operation.action === 'retry' ? yield* ownersOf(jobs?.ids ?? []) : letters.map((row) => row.user_id)
    yield* lockUsersOf(owners)
    const row = yield* one(sql.takeStep, { ...term, id: item.operationId, version: item.version })
    if (row === undefined) return NOTHING
    const taken = toOperation(row)
    // Its place is the one that was seen: a step in between would have changed the version.
    return jobs === null ? yield* redriveStep(taken, item, row.now) : yield* walkStep(taken, jobs, item, row.now)
  })
}
