import { expect, test } from 'vitest'
import { privatePostgres } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { insertBulk } from '../../testing/store/bulk.ts'
import { integer } from '../../testing/store/rows.ts'
import { openNode, sql, until } from '../../testing/store/store.ts'
import { heartbeatBatch } from '../leasing/heartbeat-runs.ts'
import type { Store } from '../port.ts'

/** Hazard 19: a heartbeat writes no index, or it costs three times as much. */

/** A node extends many leases together, but not all those on a page: workers began at different times. */
const SHARE = 10

test('heartbeats stay on the page of their run', { timeout: 600_000 }, async () => {
  // Of its own: transactions of other tests would keep old versions of the runs from being removed.
  const postgres = await privatePostgres()
  const url = await postgres.createDatabase('hot')
  const [node, reader] = [await openNode(url), await openNode(url)]
  try {
    const runs = await insertBulk(node, { count: size(1_000, 20_000), state: 'RUNNING', workerId: 'w' })
    const rounds = size(15, 50)
    const before = await updates(reader)
    for (let beat = 0; beat < rounds * SHARE; beat++) {
      const items = runs
        .filter((_, i) => i % SHARE === beat % SHARE)
        .map(({ jobId }) => ({ jobId, workerId: 'w', leaseId: `${jobId}.t` }))
      const outcomes = await node.write(heartbeatBatch(items))
      expect(outcomes.every(({ kind }) => kind === 'extended')).toBe(true)
    }
    // What a connection has counted it tells when it ends.
    await node.close()
    const after = await until('the statistics', async () => {
      const now = await updates(reader)
      return now.updated - before.updated >= rounds * runs.length && now
    })
    expect((after.hot - before.hot) / (after.updated - before.updated)).toBeGreaterThan(0.9)
  } finally {
    await reader.close()
    await postgres.stop()
  }
})

async function updates(store: Store): Promise<{ updated: number; hot: number }> {
  const [row] = await sql(
    store,
    `SELECT n_tup_upd::bigint AS updated, n_tup_hot_upd::bigint AS hot FROM pg_stat_user_tables
      WHERE schemaname = 'ichido' AND relname = 'held'`,
  )
  return { updated: integer(row, 'updated'), hot: integer(row, 'hot') }
}
