import pg from 'pg'
import { expect, test } from 'vitest'
import { freshDatabase } from '../../../scripts/testing/services.ts'
import { everyStatement, keptPlan, nodes, type PlanNode } from '../testing/store/explain.ts'
import { openNode } from '../testing/store/store.ts'
import type { Store } from './port.ts'
import type { Statement } from './statement.ts'

/**
 * Hazard 21: a node that starts on an empty database keeps the plans that it makes then until the tables are analyzed.
 * The one of every lease once read all runs there were: 80 ms for 50 leases at 25,000 runs, where 3 ms will do.
 */

const FIXED = new Set([
  ...['api_tokens', 'leadership', 'queue_times', 'queues', 'redrives', 'relay_watermark', 'settings', 'workers'],
])

const KNOWN = [
  // Whether there is any: the first row tells.
  ...['lease_plain', 'lease_plain_from', 'lease_runs', 'lease_runs_from', 'leased_by_poll'].map(
    (name) => `${name}: artifacts by artifacts_job`,
  ),
  'next_due: ready by ready_delayed',
  'next_tick_in: job_definitions by job_definitions_due',
  'read_any_log_ref: run_logs by itself',
  // The first of those that are not processed, in the order of the index.
  'read_unprocessed_triggers: triggers by triggers_unprocessed',
  // Everybody, when the default limits change.
  'forget_bytes: quotas by quotas_pkey',
  // What they count is all that the index holds.
  'count_queue: ready by ready_delayed',
  'list_queues: ready by ready_delayed',
  'lock_exhausted: ready by ready_orphaned',
  ...['ready', 'held', 'ended'].map((room) => `count_by_state: ${room} by itself`),
  // Few runs are held at a time, and these want to know of all of them.
  ...['confirm_runs', 'halt_runs', 'lock_unstarted'].map((name) => `${name}: held by held_pkey`),
  ...[
    'count_held',
    'count_queue',
    'forsake_runs',
    'list_queues',
    'next_lapse',
    'read_held_queues',
    'read_obstacles',
  ].map((name) => `${name}: held by itself`),
  'read_obstacles: held by itself',
  'read_waiting: held by itself',
]

test('no plan that was made on an empty store reads a whole growing table', async () => {
  const database = await freshDatabase()
  const node = await openNode(database.url)
  const client = new pg.Client(database.url)
  try {
    const statements = await everyStatement()
    expect(statements.length).toBeGreaterThan(200)
    expect(await wholeReads(node, statements)).toEqual(KNOWN.sort())
    // `ready` and `held` are empty whenever all jobs are done, and are then analyzed. A join could begin with all their rows.
    await client.connect()
    await client.query('VACUUM ANALYZE ichido.ready, ichido.held')
    // The first queue in the order of the index; and once, when a node starts.
    const known = [...KNOWN, 'read_ready_queues: ready by ready_last_tag', 'redate_events: held by held_leased_tx']
    expect(await wholeReads(node, statements)).toEqual(known.sort())
  } finally {
    await client.end()
    await node.close()
    await database.leave()
  }
})

async function wholeReads(node: Store, statements: readonly Statement[]): Promise<string[]> {
  const whole: string[] = []
  for (const statement of statements) {
    for (const scan of nodes(await keptPlan(node, statement)).filter(readsAll))
      whole.push(`${statement.name}: ${scan['Relation Name']} by ${scan['Index Name'] ?? 'itself'}`)
  }
  return whole.sort()
}

function readsAll(plan: PlanNode): boolean {
  const table = plan['Relation Name']
  const found = plan['Index Cond'] ?? plan['TID Cond'] ?? plan['Recheck Cond']
  const scans = plan['Node Type'].endsWith('Scan') && plan['Node Type'] !== 'Bitmap Heap Scan'
  return scans && table !== undefined && !FIXED.has(table) && found === undefined
}
