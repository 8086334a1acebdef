import pg from 'pg'
import { v7 } from 'uuid'
import { expect, onTestFinished, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { logRefOf } from '../../../src/log-archive/port.ts'
import { archiveLog, findLogRefs, findOldLogs, findRunLog, forgetLogs } from '../../../src/store/logs/archive-logs.ts'
import { findLogs, LOG_END, LOG_START, storeLogs } from '../../../src/store/logs/run-logs.ts'
import { command } from '../../../src/store/port.ts'
import { seize } from '../../../src/testing/nodes/reaper.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { insertBulk } from '../../../src/testing/store/bulk.ts'
import { readPlans, rowsTouched, writePlans } from '../../../src/testing/store/explain.ts'
import { Gate } from '../../../src/testing/store/gate.ts'
import { only, Scene } from '../../../src/testing/store/scene.ts'
import { sql } from '../../../src/testing/store/store.ts'

/** Two nodes on PostgreSQL run pairs of commands on one log. The last test checks the query plans. */

const nodes = twoNodes()
const bytesMax = 1_000
const chunk = (n: number) => ({ n, stream: 'stdout' as const, text: `${n}` })

async function ended(scene: Scene) {
  const lease = await scene.running()
  const { jobId, runId, leaseId } = lease
  const item = { jobId, leaseId, workerId: scene.workerId, chunks: [chunk(0), chunk(1), chunk(2)], bytesMax }
  await scene.store.write(storeLogs(item))
  await scene.finish(lease)
  const logRef = logRefOf({ runId, fileId: v7() })
  const archive = archiveLog(await seize(nodes.a()), { runId, lastN: 2, logRef })
  const forget = command('forget', () => forgetLogs(JSON.stringify([jobId]), 100))
  const left = async () =>
    (await sql(nodes.a(), 'SELECT n, log_ref FROM ichido.run_logs WHERE run_id = $1', runId)).map(Object.values)
  return { archive, forget, left }
}

test('archiving and removing a log leave nothing of it, in either order', async () => {
  const first = await ended(new Scene(nodes.a()))
  expect(await nodes.meet(first.archive, first.forget)).toEqual([true, true])
  expect(await first.left()).toEqual([])
  const second = await ended(new Scene(nodes.a()))
  expect(await nodes.meet(second.forget, second.archive)).toEqual([true, false])
  expect(await second.left()).toEqual([])
})

test('of two archives of one log, only one is recorded', async () => {
  const { archive, left } = await ended(new Scene(nodes.a()))
  expect(await nodes.meet(archive, archive)).toEqual([true, true])
  expect(await left()).toHaveLength(1)
})

test('a chunk that is appended while the run ends is stored before the archive', async () => {
  const scene = new Scene(nodes.b())
  const lease = await scene.running()
  const { jobId, runId, leaseId } = lease
  const append = storeLogs({ jobId, leaseId, workerId: scene.workerId, chunks: [chunk(0)], bytesMax })
  const client = new pg.Client(nodes.url())
  await client.connect()
  onTestFinished(() => client.end())
  const gate = await Gate.shut(client)
  const appending = nodes.a().write(gate.hold(append))
  await gate.reached()
  const ending = scene.finish(lease)
  await gate.someoneWaits()
  const term = await seize(nodes.a())
  const archive = archiveLog(term, { runId, lastN: -1, logRef: 'x' })
  // The run is not offered for archiving yet. An archive would wait for the row and then find more chunks than it read.
  expect(await nodes.a().read(findOldLogs(0, 100))).not.toContain(runId)
  expect(await nodes.a().write(archive)).toBe(false)
  await gate.open()
  expect(await appending).toMatchObject({ kind: 'stored', accepted: 1 })
  await ending
  expect(await nodes.a().write(archive)).toBe(false)
  await expect(nodes.a().write(append)).resolves.toMatchObject({ kind: 'refused' })
  expect(await nodes.a().read(findOldLogs(0, 100))).toContain(runId)
})

test('finding old logs, and one log among many, reads few rows', async () => {
  const store = nodes.a()
  const runs = await insertBulk(store, { count: size(2_000, 20_000), state: 'SUCCEEDED' })
  await sql(
    store,
    `INSERT INTO ichido.run_logs (job_id, run_id, run_no, n, stream, chunk, end_bytes, head, created_at)
      SELECT job_id, id, run_no, n, 'stdout', 'some text', n, n = 0, now_ms() - CASE WHEN fair_tag % 100 = 0 THEN 3600000 ELSE 0 END
      FROM ichido.runs, generate_series(0, 3) n WHERE queue = 'bulk'`,
  )
  await sql(
    store,
    "UPDATE ichido.runs SET finished_at = now_ms() - 3600000 WHERE queue = 'bulk' AND fair_tag % 100 = 0",
  )
  await sql(store, 'ANALYZE ichido.ended, ichido.run_logs')
  const due = await store.read(findOldLogs(1_800_000, 10))
  expect(due).toHaveLength(10)
  const [{ jobId } = only([])] = runs
  const runId = jobId
  const amount = { chunksMax: 100, bytesMax: 1_000 }
  const logRef = logRefOf({ runId, fileId: v7() })
  const plans = [
    ...(await readPlans(store, findOldLogs(1_800_000, 10))),
    ...(await readPlans(store, findLogs(jobId, 'after', LOG_START, amount))),
    ...(await readPlans(store, findLogs(jobId, 'before', LOG_END, amount))),
    ...(await readPlans(store, findRunLog(runId, -1, amount))),
    ...(await readPlans(store, findLogRefs([runId]))),
    ...(await writePlans(store, archiveLog(await seize(store), { runId, lastN: 3, logRef }))),
    ...(await writePlans(
      store,
      command('forget', () => forgetLogs(JSON.stringify([jobId]), 100)),
    )),
  ]
  for (const plan of plans) expect(rowsTouched(plan), JSON.stringify(plan, null, 1)).toBeLessThanOrEqual(40)
})
