import { FIRST_ID } from '../../core/run/job.ts'
import { ticksBetween } from '../../core/schedule/schedule.ts'
import { planTicks } from '../../core/schedule/ticks.ts'
import type { Command } from '../../store/port.ts'
import { type RunningBackfill, runningBackfills, stepBackfill } from '../../store/schedules/backfills.ts'
import type { Maker } from '../../store/schedules/definition-jobs.ts'
import {
  type DueDefinition,
  findDue,
  findNextTick,
  findWaitingTicks,
  makeTicks,
  type Planned,
  type Tick,
  tryWaitingTicks,
} from '../../store/schedules/ticks.ts'
import type { Term } from '../../store/system/term.ts'
import { BATCH_CHARS_MAX, eachByItself, type MakerDeps, makeJobs } from '../election/batches.ts'
import type { ClockWatch } from '../election/clock-watch.ts'
import type { Leading } from '../election/elect.ts'

interface ScheduleOptions extends MakerDeps {
  clock: Pick<ClockWatch, 'observe' | 'evenMs'>
  onTrouble(where: string, error: unknown): void
}

/** Makes the jobs of due and of waiting ticks, for one term, in bounded batches. */
export function createSchedule(options: ScheduleOptions, leading: Leading): () => Promise<number | null> {
  const { world, store, meter, settings, clock, onTrouble } = options
  /** Definitions with waiting ticks take turns in the order of their ids. */
  let tried = FIRST_ID
  /** Definitions whose rule cannot be read, and that were reported. */
  const unreadable = new Set<string>()

  async function make(commandOf: (maker: Maker) => Command<Tick[]>): Promise<Tick[]> {
    const ticks = await makeJobs(options, commandOf, (ticks) => ticks)
    for (const { outcome, lateMs } of ticks) meter.ticked(outcome, lateMs)
    return ticks
  }

  function plan(definition: DueDefinition, lateness: { nowMs: number; evenMs: number; max: number }): Planned[] {
    const { schedule, dueAtMs } = definition
    try {
      return [{ definition, dueAtMs, plan: planTicks(schedule, { dueAtMs, ...lateness }) }]
    } catch (error) {
      // An unknown time zone must not delay other definitions. This one stays overdue until a node knows the zone.
      if (!unreadable.has(definition.id)) onTrouble(`schedule of ${definition.name}`, error)
      unreadable.add(definition.id)
      return []
    }
  }

  /** A locked user must not delay all others. */
  const makePlanned = (planned: readonly Planned[]): Promise<Tick[]> =>
    eachByItself(
      { attempt: (some) => make((maker) => makeTicks(leading, some, maker)), leading, onTrouble },
      planned,
      ({ definition }) => `schedules of ${definition.userId}`,
    )

  /** Returns true if there is more to do at once. */
  async function tryWaiting(batchMax: number): Promise<boolean> {
    const found = await store.read(findWaitingTicks(tried, batchMax))
    const waiting = fitting(found)
    const more = found.length === batchMax || waiting.length < found.length
    tried = more ? (waiting.at(-1)?.definitionId ?? FIRST_ID) : FIRST_ID
    if (waiting.length === 0) return false
    const made = await make((maker) => tryWaitingTicks(leading, waiting, maker))
    return made.length > 0 || more
  }

  return async () => {
    const batchMax = settings.get('schedule_batch_max')
    // Waiting ticks were due earlier.
    const moreWaits = await tryWaiting(batchMax).catch((error: unknown) => {
      onTrouble('ticks that wait', error)
      return false
    })
    const askedMs = world.monotonic()
    const { definitions, nowMs } = await store.read(findDue(batchMax))
    clock.observe(nowMs, askedMs)
    const planned = shares(definitions, batchMax).flatMap(({ one, max }) =>
      plan(one, { nowMs, evenMs: clock.evenMs, max }),
    )
    const made = await makePlanned(planned)
    // A due definition that was skipped, because it is locked or changed, gets its turn after the interval.
    if (moreWaits || made.length > 0) return 0
    const nextInMs = await store.read(findNextTick())
    return nextInMs !== null && nextInMs > 0 ? nextInMs : null
  }
}

/** Each definition gets its share of the batch: ticks and bytes. */
function shares(definitions: readonly DueDefinition[], batchMax: number): { one: DueDefinition; max: number }[] {
  const some = fitting(definitions)
  const most = (payloadChars: number) => Math.min(batchMax, BATCH_CHARS_MAX / payloadChars) / some.length
  return some.map((one) => ({ one, max: Math.max(1, Math.floor(most(one.payloadChars))) }))
}

/** Takes definitions that fit into a batch, at least one. The others are next. */
function fitting<T extends { payloadChars: number }>(all: readonly T[]): T[] {
  let chars = 0
  return all.filter(({ payloadChars }, i) => {
    chars += payloadChars
    return i === 0 || chars <= BATCH_CHARS_MAX
  })
}

const BACKFILLS_MAX = 20

/** Continues every running backfill by one bounded step. */
export function createBackfill(options: MakerDeps, term: Term): () => Promise<number | null> {
  const { store, meter, settings } = options
  /** A backfill that waits for a quota or a job must not keep later ones from their turn. */
  let after = FIRST_ID
  /** True if one has moved since all had their last turn. */
  let moved = false

  async function step({ backfill, definition }: RunningBackfill): Promise<boolean> {
    const { atMs, toMs, schedule } = backfill
    const fitting = Math.max(1, Math.floor(BATCH_CHARS_MAX / (definition?.payload.length ?? 1)))
    const max = Math.min(settings.get('schedule_batch_max'), fitting)
    const ticks = definition === null ? [] : ticksBetween(schedule, atMs, toMs, max)
    const commandOf = (maker: Maker) => stepBackfill(term, { backfill, definition, ticks }, maker)
    const { made, goesOn } = await makeJobs(options, commandOf, ({ made }) => made)
    for (const { outcome } of made) meter.ticked(outcome, null)
    return goesOn
  }

  return async () => {
    const found = await store.read(runningBackfills(BACKFILLS_MAX, after))
    const failures: unknown[] = []
    for (const running of found) {
      // A backfill that fails does not delay the others.
      moved = (await step(running).catch((error: unknown) => failures.push(error) === 0)) || moved
    }
    const full = found.length === BACKFILLS_MAX
    const more = full || moved
    after = full ? (found.at(-1)?.backfill.backfillId ?? FIRST_ID) : FIRST_ID
    moved = full && moved
    if (failures.length > 0) throw failures[0]
    return more ? 0 : null
  }
}
