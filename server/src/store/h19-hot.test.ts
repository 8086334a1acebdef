import { expect, test } from 'vitest'
import { size } from '../../../scripts/testing/size.ts'
import { insertBulk } from '../testing/bulk.ts'
import { sql, until } from '../testing/store.ts'
import { twoNodes } from '../testing/two-nodes.ts'
import { heartbeatBatch } from './commands/heartbeat-runs.ts'
import { integer } from './statement.ts'

/** Hazard 19: a heartbeat writes no index, or it costs three times as much. */

const nodes = twoNodes()

test('heartbeats stay on the page of their run', { timeout: 600_000 }, async () => {
  const node = nodes.a()
  // While it looks at the table nothing is tidied up: a busy machine would make that long enough to be seen here.
  await sql(node, 'ALTER TABLE ichido.runs SET (autovacuum_enabled = false)')
  const runs = await insertBulk(node, { count: size(1_000, 20_000), state: 'RUNNING', workerId: 'w' })
  // Its snapshot, held long on a busy machine, would keep the pages from being tidied between two rounds.
  await sql(node, 'ALTER TABLE ichido.runs SET (autovacuum_enabled = false)')
  const rounds = size(15, 50)
  const updates = async () => {
    const [row] = await sql(
      node,
      `SELECT n_tup_upd::bigint AS updated, n_tup_hot_upd::bigint AS hot FROM pg_stat_user_tables
        WHERE schemaname = 'ichido' AND relname = 'runs'`,
    )
    return { updated: integer(row, 'updated'), hot: integer(row, 'hot') }
  }
  const before = await updates()
  for (let round = 0; round < rounds; round++) {
    for (let at = 0; at < runs.length; at += 1_000) {
      const beats = runs
        .slice(at, at + 1_000)
        .map(({ runId }) => ({ runId, workerId: 'w', leaseId: `${runId}.t`, leaseTtlMs: 60_000 }))
      const outcomes = await node.write(heartbeatBatch(beats))
      expect(outcomes.every(({ kind }) => kind === 'extended')).toBe(true)
    }
  }
  // What a connection has counted it tells about once a second.
  const after = await until('the statistics', async () => {
    const now = await updates()
    return now.updated - before.updated >= rounds * runs.length && now
  })
  expect((after.hot - before.hot) / (after.updated - before.updated)).toBeGreaterThan(0.9)
})
