import { decide, type RunCommand, type RunFacts, type RunRefusal } from '../../core/run/run-state.ts'
import { each, type Values, type Work } from '../statement.ts'
import { type FACTS_ROW, readFacts } from './runs.sql.ts'

export type FactsRow = Values<typeof FACTS_ROW>

/** A worker names a run by its lease. */
export interface LeaseName {
  jobId: string
  leaseId: string
}

/** By lease: the facts of the run that had the lease. If no run had it, those of the job's latest run. */
export function* factsOf(items: readonly LeaseName[]): Work<Map<string, FactsRow>> {
  const { firsts } = foldBy(items, ({ leaseId }) => leaseId)
  const rows = yield* each(
    readFacts,
    firsts.map(({ jobId, leaseId }) => ({ job_id: jobId, token: tokenOf(leaseId) })),
  )
  const byJob = Map.groupBy(rows, (row) => row.job_id)
  return new Map(
    firsts.flatMap(({ jobId, leaseId }): [string, FactsRow][] => {
      const runs = byJob.get(jobId) ?? []
      const row = runs.find(({ token }) => token === tokenOf(leaseId)) ?? runs.find(({ latest }) => latest)
      return row === undefined ? [] : [[leaseId, row]]
    }),
  )
}

export function toFacts(row: FactsRow): RunFacts {
  return {
    state: row.state,
    version: row.version,
    runAtMs: row.run_at,
    workerId: row.worker_id,
    leaseId: row.token === null ? null : leaseIdOf(row.job_id, row.token),
    startId: row.start_id,
    leaderEpoch: row.leader_epoch,
    cancelRequestedAtMs: row.cancel_requested_at,
    outcomeHash: row.outcome_hash,
  }
}

/**
 * Says why a guarded write changed nothing. The WHERE of the write has decided; this only explains. A row that fits now was
 * changed since then. A report that fits now came before the start of its run. Any other caller has lost its lease.
 */
export function explainRefusal(row: FactsRow | undefined, command: RunCommand): 'repeat' | RunRefusal | 'NOT_FOUND' {
  if (row === undefined) return 'NOT_FOUND'
  const decision = decide(toFacts(row), command, Number.MAX_SAFE_INTEGER)
  if (decision.kind === 'repeat') return 'repeat'
  if (decision.kind === 'refuse') return decision.reason
  return command.verb === 'finish' || command.verb === 'fail' ? 'NOT_STARTED' : 'LEASE_LOST'
}

/** Whether a guarded write would change the run as it is now. */
export function fits(row: FactsRow | undefined, command: RunCommand): boolean {
  return row !== undefined && decide(toFacts(row), command, Number.MAX_SAFE_INTEGER).kind === 'move'
}

/** A lease_id is `job.token`: it leads to the run without an index on a column that changes with every lease. */
export const leaseIdOf = (jobId: string, token: string) => `${jobId}.${token}`

/** The job of a lease_id; null when the text cannot be a lease_id. */
export function jobIdOf(leaseId: string): string | null {
  const match = /^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.[\w-]{1,64}$/.exec(leaseId)
  return match?.[1] ?? null
}

const UUID_LENGTH = 36

export const tokenOf = (leaseId: string) => leaseId.slice(UUID_LENGTH + 1)

/** Splits a batch into the first item of each name and its repeats, which must see what the first item did. */
export function foldBy<T>(items: readonly T[], nameOf: (item: T) => string): { firsts: T[]; repeats: [T, T][] } {
  const firstOf = new Map<string, T>()
  const repeats: [T, T][] = []
  for (const item of items) {
    const name = nameOf(item)
    const first = firstOf.get(name)
    if (first === undefined) firstOf.set(name, item)
    else repeats.push([item, first])
  }
  return { firsts: [...firstOf.values()], repeats }
}

/**
 * Tries the items of a batch, one item of each job at a time. An item of a worker without the lease must not stop a later item of
 * the holder. `attempt` answers with the rows that it changed, and `commandOf` says what an item asks for.
 */
export function* tryOnePerJob<T extends LeaseName, Row>(
  items: readonly T[],
  attempt: (firsts: T[]) => Work<Map<string, Row>>,
  commandOf: (item: T) => RunCommand,
): Work<{ changed: [T, Row][]; missed: T[] }> {
  const changed: [T, Row][] = []
  const missed: T[] = []
  let rest = items
  while (rest.length > 0) {
    const { firsts, repeats } = foldBy(rest, (item) => item.jobId)
    const rows = yield* attempt(firsts)
    for (const item of firsts) {
      const row = rows.get(item.jobId)
      if (row === undefined) missed.push(item)
      else changed.push([item, row])
    }
    const behind = repeats.map(([item]) => item)
    const untried = behind.filter((item) => !rows.has(item.jobId))
    const fitting = yield* findFitting(untried, commandOf)
    missed.push(...behind.filter((item) => !fitting.has(item)))
    rest = untried.filter((item) => fitting.has(item))
  }
  return { changed, missed }
}

/**
 * The items that would change their run as it is now. The write decides; but a thousand items that fit nothing, tried one by one,
 * delayed all other items by as many statements.
 */
function* findFitting<T extends LeaseName>(items: readonly T[], commandOf: (item: T) => RunCommand): Work<Set<T>> {
  const facts = yield* factsOf(items)
  return new Set(items.filter((item) => fits(facts.get(item.leaseId), commandOf(item))))
}
