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
  ...['api_tokens', 'leadership', 'operations', 'queue_times', 'queues', 'relay_watermark', 'settings', 'workers'],
  ...['webhooks', 'webhook_places'],
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
  // Only letters of a redrive are in the index.
  'read_redrive_of: dead_letters by dead_letters_redrive',
  ...['ready', 'held', 'ended'].map((room) => `count_by_state: ${room} by itself`),
  ...['ready', 'held'].map((room) => `count_active: ${room} by itself`),
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
    await client.connect()
    const leading = await leadingColumns(client)
    const wholeReads = () => findWholeReads(node, statements, leading)
    expect(await wholeReads()).toEqual(KNOWN.sort())
    // `ready` and `held` are empty whenever all jobs are done, and are then analyzed. A join could begin with all their rows.
    await client.query('VACUUM ANALYZE ichido.ready, ichido.held')
    const known = [
      ...KNOWN,
      // The first queue in the order of the index.
      'read_ready_queues: ready by ready_order',
      // When a node starts.
      'redate_events: held by held_leased_tx',
      // Of queues without a lease for long; the leader looks now and then.
      'remove_queue_times: ready by ready_order',
    ]
    expect(await wholeReads()).toEqual(known.sort())
  } finally {
    await client.end()
    await node.close()
    await database.leave()
  }
})

/** The first column of each index. */
async function leadingColumns(client: pg.Client): Promise<Map<string, string>> {
  const { rows } = await client.query<{ name: string; leading: string }>(
    `SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid, 1, false) AS leading FROM pg_index`,
  )
  return new Map(rows.map(({ name, leading }) => [name.replace('ichido.', ''), leading]))
}

async function findWholeReads(
  node: Store,
  statements: readonly Statement[],
  leading: ReadonlyMap<string, string>,
): Promise<string[]> {
  const whole: string[] = []
  for (const statement of statements) {
    for (const scan of nodes(await keptPlan(node, statement)).filter((plan) => readsAll(plan, leading)))
      whole.push(`${statement.name}: ${scan['Relation Name']} by ${scan['Index Name'] ?? 'itself'}`)
  }
  return whole.sort()
}

/** A condition on other columns than the first one reads a whole index, too. */
function readsAll(plan: PlanNode, leading: ReadonlyMap<string, string>): boolean {
  const table = plan['Relation Name']
  const index = plan['Index Name']
  const found = plan['Index Cond'] ?? plan['TID Cond'] ?? plan['Recheck Cond']
  const scans = plan['Node Type'].endsWith('Scan') && plan['Node Type'] !== 'Bitmap Heap Scan'
  const narrow = found !== undefined && (index === undefined || found.includes(leading.get(index) ?? index))
  return scans && table !== undefined && !FIXED.has(table) && !narrow
}
