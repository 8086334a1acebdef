import { costConformance } from './conformance/costs.ts'
import { decideConformance } from './conformance/decide.ts'
import type { Given } from './conformance/given.ts'
import { jobConformance } from './conformance/jobs.ts'
import { keyConformance } from './conformance/keys.ts'
import { lateReportConformance } from './conformance/late-reports.ts'
import { leaderConformance } from './conformance/leader-moves.ts'
import { leaseConformance } from './conformance/lease.ts'
import { queueConformance } from './conformance/queues.ts'
import { quotaConformance } from './conformance/quotas.ts'
import { releaseConformance } from './conformance/release.ts'
import { retryConformance } from './conformance/retries.ts'
import { runConformance } from './conformance/runs.ts'
import { submitConformance } from './conformance/submit.ts'
import { userConformance } from './conformance/users.ts'
import { workerConformance } from './conformance/workers.ts'

/** What every engine must do alike, from the outside: commands in, outcomes and rows out. */
export function conformance(given: Given): void {
  submitConformance(given)
  quotaConformance(given)
  costConformance(given)
  userConformance(given)
  leaseConformance(given)
  runConformance(given)
  releaseConformance(given)
  retryConformance(given)
  queueConformance(given)
  jobConformance(given)
  keyConformance(given)
  decideConformance(given)
  lateReportConformance(given)
  leaderConformance(given)
  workerConformance(given)
}
