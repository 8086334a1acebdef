import { v7 } from 'uuid'
import { createOperate } from '../../leader/duties/operate.ts'
import { realWorld } from '../../node/world.ts'
import { createFairTags } from '../../services/leasing/fair-tags.ts'
import { type Meter, silentMeter } from '../../services/system/meter.ts'
import { defaultSettings } from '../../services/system/settings.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { type RetryOutcome, retryJob } from '../../store/jobs/retry-jobs.ts'
import { beginOperation, findOperation, type NewOperation, type Operation } from '../../store/operations/operations.ts'
import type { Command, Store } from '../../store/port.ts'
import { finishBatch } from '../../store/runs/finish-runs.ts'
import type { Row } from '../../store/statement.ts'
import { tryToLead } from '../../store/system/leadership.ts'
import type { Term } from '../../store/system/term.ts'
import { text } from './rows.ts'
import { failed, type Scene } from './scene.ts'
import { sql } from './store.ts'

type Changes = NonNullable<Parameters<Scene['item']>[0]>

const BATCH = 500

/** Creates dead letters in a scene, and returns their jobs. */
export async function makeDead(scene: Scene, count: number, changes: Changes = {}): Promise<string[]> {
  const made: string[] = []
  while (made.length < count) {
    const items = Array.from({ length: Math.min(BATCH, count - made.length) }, () => scene.item(changes))
    await scene.submitAll(items)
    made.push(...(await failAll(scene, changes.kind)))
  }
  return made
}

/** Leases all runs, fails them for good, and returns their jobs. */
export async function failAll(scene: Scene, kind = 'work'): Promise<string[]> {
  const leases = await scene.lease({ max: BATCH, startId: 'start', kinds: [kind] })
  const report = failed({ code: 'BROKEN', message: 'It broke' }, false)
  await scene.store.write(finishBatch(leases.map((lease) => scene.endItem(lease, report))))
  return leases.map((lease) => lease.jobId)
}

export async function makeOneDead(scene: Scene, changes: Changes = {}): Promise<string> {
  const [jobId] = await makeDead(scene, 1, changes)
  if (jobId === undefined) throw new Error('It was not leased')
  return jobId
}

export function retry(jobId: string): Command<RetryOutcome> {
  return retryJob({ jobId, nextRunId: v7() }, 'tester', v7(), [])
}

/** The dead letters of a scene's user. */
export function letters(scene: Scene): Promise<Row[]> {
  return sql(scene.store, 'SELECT * FROM ichido.dead_letters WHERE user_id = $1', scene.userId)
}

export function begin(
  scene: Scene,
  changes: Partial<Extract<NewOperation, { action: 'redrive' }>> = {},
): Command<Operation> {
  return beginOperation({
    action: 'redrive',
    operationId: v7(),
    auditId: v7(),
    actor: 'tester',
    filter: { ...EVERY_DEAD_LETTER, userId: scene.userId },
    jobIds: null,
    perSecond: null,
    ...changes,
  })
}

/** Takes the leadership from any holder. */
export async function lead(store: Store): Promise<Term> {
  await sql(store, 'UPDATE ichido.leadership SET holder = NULL, expires_at = 0')
  const holder = v7()
  const { epoch, held } = await store.write(tryToLead(holder, 600_000))
  if (!held) throw new Error('Somebody else leads')
  return { epoch, holder }
}

/** The leader's duty on a store. Each call is a tick. */
export function redriver(store: Store, term: Term, counts: Partial<Meter> = {}): () => Promise<number | null> {
  const bus = { wake() {}, subscribe: () => () => {}, close: async () => {} }
  const fairTags = createFairTags({ world: realWorld, store })
  const meter = { ...silentMeter, ...counts }
  const given = { world: realWorld, store, bus, meter, settings: defaultSettings, fairTags }
  return createOperate(given, term)
}

export async function progress(store: Store, { operationId }: Pick<Operation, 'operationId'>): Promise<Operation> {
  const found = await store.read(findOperation(operationId))
  if (found === null) throw new Error(`There is no redrive ${operationId}`)
  return found
}

/** How often each job was done: the number of later runs with a fresh retry budget. */
export async function timesRetried(scene: Scene): Promise<Map<string, number>> {
  const rows = await sql(
    scene.store,
    `SELECT job_id, count(*) AS times FROM ichido.runs WHERE user_id = $1 AND run_no > 1 AND retry_count = 0 GROUP BY job_id`,
    scene.userId,
  )
  return new Map(rows.map((row) => [text(row, 'job_id'), Number(row.times)]))
}
