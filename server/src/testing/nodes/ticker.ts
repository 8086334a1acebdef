import { v7 } from 'uuid'
import type { Definition, DefinitionContent } from '../../core/schedule/definition.ts'
import type { Schedule } from '../../core/schedule/schedule.ts'
import { createSchedule } from '../../leader/duties/schedule.ts'
import type { ClockWatch } from '../../leader/election/clock-watch.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Settings } from '../../services/system/settings.ts'
import type { Store } from '../../store/port.ts'
import { createDefinition, findDefinition } from '../../store/schedules/definitions.ts'
import type { Row } from '../../store/statement.ts'
import { readClock } from '../../store/system/leadership.ts'
import type { Term } from '../../store/system/term.ts'
import { sql, unique } from '../store/store.ts'
import type { LeaderScene } from './leader-scene.ts'
import { EVEN, seize, trusting } from './reaper.ts'

export const EVERY_SECOND: Schedule = {
  cron: '* * * * * *',
  timeZone: 'UTC',
  catchUp: 'all',
  catchUpWindowSeconds: 86_400,
  overlap: 'allow',
  jitterSeconds: 0,
  startsAtMs: null,
  endsAtMs: null,
}

export const BY = () => ({ actor: 'tester', id: v7() })

export function content(
  schedule: Partial<Schedule> | null,
  changes: Partial<DefinitionContent> = {},
): DefinitionContent {
  return {
    kind: 'work',
    queue: null,
    payload: '{}',
    policy: {},
    priority: 0,
    labels: null,
    domain: null,
    stages: null,
    seqScope: 'attempt',
    schedule: schedule === null ? null : { ...EVERY_SECOND, ...schedule },
    on: null,
    ...changes,
  }
}

/** A new definition; by default it is due every second. */
export async function define(
  store: Store,
  schedule: Partial<Schedule> | null = {},
  { userId = unique('user'), ...changes }: Partial<DefinitionContent> & { userId?: string } = {},
): Promise<Definition> {
  const made = { id: v7(), name: unique('definition'), userId, content: content(schedule, changes) }
  const created = await store.write(createDefinition(made, BY()))
  if (created.kind !== 'created') throw new Error(`It was not created: ${created.kind}`)
  return created.definition
}

export async function again(store: Store, { name }: Definition): Promise<Definition> {
  const found = await store.read(findDefinition(name))
  if (found === null) throw new Error(`There is no definition ${name}`)
  return found
}

/** Sets the time of the next tick. */
export async function setDue(store: Store, { id }: Definition, atMs: number): Promise<void> {
  await sql(store, 'UPDATE ichido.job_definitions SET next_tick_at = $2 WHERE id = $1', id, atMs)
}

export function ledger(store: Store, { id }: Definition): Promise<Row[]> {
  return sql(store, 'SELECT * FROM ichido.occurrences WHERE definition_id = $1 ORDER BY scheduled_for', id)
}

export function jobsOf(store: Store, { id }: Definition): Promise<Row[]> {
  return sql(
    store,
    `SELECT j.*, r.state, r.run_at FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
      WHERE j.definition_id = $1 ORDER BY j.scheduled_for, j.id`,
    id,
  )
}

interface TickerChanges {
  term?: Term
  clock?: Pick<ClockWatch, 'observe' | 'evenMs'>
  batchMax?: number
  meter?: Meter
  onTrouble?: (where: string, error: unknown) => void
}

export function fail(where: string, error: unknown): never {
  throw new Error(where, { cause: error })
}

/** The leader's duty, which the test calls. */
export async function ticker(
  scene: Pick<LeaderScene, 'services' | 'bus' | 'store' | 'world'>,
  changes: TickerChanges = {},
): Promise<() => Promise<number | null>> {
  const { services, bus, store, world } = scene
  const term = changes.term ?? (await seize(store))
  const settings: Settings = {
    get: (name) =>
      name === 'schedule_batch_max' && changes.batchMax !== undefined ? changes.batchMax : services.settings.get(name),
  }
  const meter = changes.meter ?? services.deps.meter
  const onTrouble = changes.onTrouble ?? fail
  const { fairTags } = services
  return createSchedule(
    { world, store, bus, meter, settings, fairTags, clock: changes.clock ?? EVEN, onTrouble },
    trusting(term),
  )
}

const MINUTE_MS = 60_000

/** Moves to the first second of a minute, so that no minute begins during a test. */
export async function toNextMinute({ store, pass }: Pick<LeaderScene, 'store' | 'pass'>): Promise<void> {
  const nowMs = await store.read(readClock())
  await pass(MINUTE_MS - (nowMs % MINUTE_MS) + 1_000)
}

/** Ticks until there is nothing left to do. */
export async function tickAll(tick: () => Promise<number | null>): Promise<void> {
  while ((await tick()) === 0);
}
