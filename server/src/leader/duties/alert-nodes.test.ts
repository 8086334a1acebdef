import { sleep } from '@ichido/sdk/world'
import { v7 } from 'uuid'
import { expect, onTestFinished, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { size } from '../../../../scripts/testing/size.ts'
import { realWorld } from '../../node/world.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Services } from '../../services/index.ts'
import { openPostgres } from '../../store/engines/postgres/postgres.ts'
import { AlertHistory } from '../../testing/nodes/alert-history.ts'
import { NodeProcess } from '../../testing/nodes/node-process.ts'
import { testServices } from '../../testing/services/services.ts'
import { integer, text } from '../../testing/store/rows.ts'
import { shiftedClock } from '../../testing/store/shifted-clock.ts'
import { sql, until } from '../../testing/store/store.ts'

const FOUR = ['dead_letters', 'duplicate_keys', 'retry_failures', 'start_delay']
const MINUTE_MS = 60_000
const TERM_MS = 6_000

test('each of the four alerts opens once and closes once, while leaders are killed', { timeout: 600_000 }, async () => {
  const { services, url, pass } = await place()
  const history = new AlertHistory(services)
  await services.settings.put(LOCAL_ADMIN, 'alert_interval_seconds', 0.05)
  let leader = await startNode(url)
  await leader.untilLeads()
  /** Kills the leader, and moves the clock to the end of its term. */
  async function succeed(): Promise<void> {
    const next = startNode(url)
    await leader.end('SIGKILL')
    leader = await next
    await pass(TERM_MS)
    await leader.untilLeads()
  }
  for (let round = 1; round <= size(1, 8); round++) {
    await history.deadLetters(11)
    await history.retries(20, 2)
    await history.submissions(10, 11)
    // So many late starts that the earlier ones do not make up for them.
    await history.delays(30, () => pass(20 * MINUTE_MS))
    await services.minuteCounts.flush()
    // Before the tick, during it, or after it.
    await succeed()
    await until('all four to be open', async () => isEach(await told(services), { open: round, closed: round - 1 }))
    await succeed()
    await ticked(services)
    expect(await told(services)).toEqual(each({ open: round, closed: round - 1 }))

    await pass(67 * MINUTE_MS)
    await succeed()
    await until('all four to be closed', async () => isEach(await told(services), { open: round, closed: round }))
    await succeed()
    await ticked(services)
    expect(await told(services)).toEqual(each({ open: round, closed: round }))
  }
})

/** How many alerts were opened so far, and how many of these were closed. */
interface Told {
  open: number
  closed: number
}

const each = (numbers: Told) => Object.fromEntries(FOUR.map((rule) => [rule, numbers]))
const isEach = (found: Record<string, Told>, numbers: Told) => JSON.stringify(found) === JSON.stringify(each(numbers))

async function told({ deps }: Services): Promise<Record<string, Told>> {
  const rows = await sql(
    deps.store,
    `SELECT rule, count(*) AS open, count(closed_at) AS closed FROM ichido.alerts
      WHERE rule IN ('${FOUR.join("', '")}') GROUP BY rule ORDER BY rule`,
  )
  return Object.fromEntries(
    rows.map((row) => [text(row, 'rule'), { open: integer(row, 'open'), closed: integer(row, 'closed') }]),
  )
}

/** The new leader has checked all rules: it has found a queue that was not reported to it. */
async function ticked({ submission, alerts, deps }: Services): Promise<void> {
  const queue = v7()
  await submission.submit(LOCAL_ADMIN, { kind: 'work', queue }, { key: null })
  await sql(deps.store, 'UPDATE ichido.runs SET run_at = 1 WHERE queue = $1', queue)
  const isTold = async () =>
    (await alerts.list({ all: true, rule: 'queue_unserved' }, 200, null)).data.some(({ subject }) => subject === queue)
  await until('the new leader to have looked', isTold)
}

async function startNode(url: string): Promise<NodeProcess> {
  const node = await NodeProcess.start(url, { shifted: true })
  onTestFinished(() => node.end('SIGKILL'))
  return node
}

/** Services without loops, on a PostgreSQL whose clock the test controls. */
async function place() {
  const { url, leave } = await freshDatabase()
  const { pool, shift } = await shiftedClock(url)
  const store = await openPostgres({
    pool,
    now: realWorld.now,
    monotonic: realWorld.monotonic,
    sleep: (ms) => sleep(realWorld, ms),
  })
  const remove = async () => {
    await pool.end()
    await leave()
  }
  const { services, close } = await testServices('postgres', {}, { store, remove })
  onTestFinished(close)
  return { services, url, pass: shift }
}
