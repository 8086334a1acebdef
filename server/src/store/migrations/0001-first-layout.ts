import { access } from './first-layout/access.ts'
import { failures } from './first-layout/failures.ts'
import { jobs } from './first-layout/jobs.ts'
import { keysAndLimits } from './first-layout/keys-and-limits.ts'
import { operation } from './first-layout/operation.ts'
import { outputs } from './first-layout/outputs.ts'
import { queues } from './first-layout/queues.ts'
import { schedulesAndTriggers } from './first-layout/schedules-and-triggers.ts'
import { webhooks } from './first-layout/webhooks.ts'
import type { Migration } from './migration.ts'

/**
 * Times are integer milliseconds, and money is integer millionths. JSON is stored as text: it is read back as it was written,
 * and no value in it can fail an insert.
 */
export const firstLayout: Migration = {
  version: 1,
  name: 'first layout',
  statements: [
    ...jobs,
    ...outputs,
    ...keysAndLimits,
    ...queues,
    ...schedulesAndTriggers,
    ...failures,
    ...access,
    ...operation,
    ...webhooks,
  ],
}
