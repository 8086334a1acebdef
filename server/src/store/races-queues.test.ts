import pg from 'pg'
import { v7 } from 'uuid'
import { expect, test } from 'vitest'
import { only, Scene } from '../testing/scene.ts'
import { sql, until } from '../testing/store.ts'
import { twoNodes } from '../testing/two-nodes.ts'
import { leaseBatch } from './commands/lease-runs.ts'
import { putQueue, type QueueSettings } from './commands/queues.ts'

/** A queue is paused or limited for the first time while a lease from it is under way on another node. */

const nodes = twoNodes()

test.each<[string, Partial<QueueSettings>, string[]]>([
  ['paused', { paused: true }, ['work']],
  ['limited', { maxConcurrent: 1 }, ['work']],
  ['paused', { paused: true }, []],
  ['limited', { maxConcurrent: 1 }, []],
])(
  'once it is %s, a lease that had only entered it takes no more than it may: %j, kinds %j',
  async (_, settings, kinds) => {
    const scene = new Scene(nodes.a())
    const insert = `INSERT INTO ichido.workers (worker_id, name, queues, created_at) VALUES ($1, 'w', '[]', 0)`
    await sql(nodes.a(), insert, scene.workerId)
    for (let i = 0; i < 5; i++) await scene.submitted()
    const client = new pg.Client(nodes.url())
    await client.connect()
    try {
      // The lease waits for the worker's row, after it has looked at the queue.
      await client.query('BEGIN')
      await client.query('SELECT 1 FROM ichido.workers WHERE worker_id = $1 FOR UPDATE', [scene.workerId])
      const leasing = nodes.a().write(leaseBatch([scene.leaseItem({ max: 5, kinds })]))
      const waits = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
      await until('the lease to wait', async () => (await client.query(waits)).rowCount)
      await nodes.b().write(putQueue(scene.queue, settings, { id: v7(), actor: 'op' }))
      await client.query('COMMIT')
      const taken = only(await leasing)
      taken.push(...only(await nodes.a().write(leaseBatch([scene.leaseItem({ max: 5, kinds })]))))
      expect(taken).toHaveLength(settings.paused ? 0 : 1)
    } finally {
      await client.end()
    }
  },
)
