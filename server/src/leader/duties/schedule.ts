import type { World } from '@ichido/sdk/world'
import type { Bus } from '../../bus/port.ts'
import { planTicks } from '../../core/schedule/ticks.ts'
import type { FairTags } from '../../services/leasing/fair-tags.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Settings } from '../../services/system/settings.ts'
import type { Store } from '../../store/port.ts'
import {
  type DueDefinition,
  findDue,
  findNextTick,
  makeTicks,
  type Planned,
  type Tick,
} from '../../store/schedules/ticks.ts'
import { findWaitingTicks, tryWaitingTicks } from '../../store/schedules/waiting-ticks.ts'
import { BATCH_CHARS_MAX, eachByItself, FIRST, wakeQueues } from '../election/batches.ts'
import type { ClockWatch } from '../election/clock-watch.ts'
import type { Leading } from '../election/elect.ts'

export interface ScheduleOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  settings: Settings
  fairTags: Pick<FairTags, 'tagsFor'>
  clock: Pick<ClockWatch, 'observe' | 'evenMs'>
  onTrouble(where: string, error: unknown): void
}

/** Makes the jobs of the ticks that are due, and of those that waited, for one term; a bounded batch at a time. */
export function createSchedule(options: ScheduleOptions, leading: Leading): () => Promise<number | null> {
  const { world, store, bus, meter, settings, fairTags, clock, onTrouble } = options
  const maker = { newId: world.uuid, tagsFor: fairTags.tagsFor }
  /** Definitions with ticks that wait have their turns in the order of ids. */
  let tried = FIRST
  /** Definitions whose rule cannot be read, and was complained about. */
  const unreadable = new Set<string>()

  function tell(ticks: readonly Tick[]): void {
    for (const { outcome, lateMs } of ticks) meter.ticked(outcome, lateMs)
    wakeQueues(bus, ticks)
  }

  function plan(definition: DueDefinition, lateness: { nowMs: number; evenMs: number; max: number }): Planned[] {
    const { schedule, dueAtMs } = definition
    try {
      return [{ definition, dueAtMs, plan: planTicks(schedule, { dueAtMs, ...lateness }) }]
    } catch (error) {
      // A time zone that this node does not know must not hold up the others. It is overdue, until a node knows it.
      if (!unreadable.has(definition.id)) onTrouble(`schedule of ${definition.name}`, error)
      unreadable.add(definition.id)
      return []
    }
  }

  /** A user with limits whose row somebody has locked must not hold up all others. */
  const make = (planned: readonly Planned[]): Promise<Tick[]> =>
    eachByItself(
      { attempt: (some) => store.write(makeTicks(leading, some, maker)), leading, onTrouble },
      planned,
      ({ definition }) => `schedules of ${definition.userId}`,
    )

  /** Whether there is more to do at once. */
  async function tryWaiting(batchMax: number): Promise<boolean> {
    const found = await store.read(findWaitingTicks(tried, batchMax))
    const waiting = fitting(found)
    const more = found.length === batchMax || waiting.length < found.length
    tried = more ? (waiting.at(-1)?.definitionId ?? FIRST) : FIRST
    if (waiting.length === 0) return false
    const made = await store.write(tryWaitingTicks(leading, waiting, maker))
    tell(made)
    return made.length > 0 || more
  }

  return async () => {
    const batchMax = settings.get('schedule_batch_max')
    // They were due before anything that is due now.
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
    const made = await make(planned)
    tell(made)
    // What is due and was passed over, because somebody has it locked or it was changed, has its turn after the interval.
    if (moreWaits || made.length > 0) return 0
    const nextInMs = await store.read(findNextTick())
    return nextInMs !== null && nextInMs > 0 ? nextInMs : null
  }
}

/** Of a batch each definition has its share of ticks, and of bytes. */
function shares(definitions: readonly DueDefinition[], batchMax: number): { one: DueDefinition; max: number }[] {
  const some = fitting(definitions)
  const most = (payloadChars: number) => Math.min(batchMax, BATCH_CHARS_MAX / payloadChars) / some.length
  return some.map((one) => ({ one, max: Math.max(1, Math.floor(most(one.payloadChars))) }))
}

/** Those at the beginning, at least one; the others have their turn next. */
function fitting<T extends { payloadChars: number }>(all: readonly T[]): T[] {
  let chars = 0
  return all.filter(({ payloadChars }, i) => {
    chars += payloadChars
    return i === 0 || chars <= BATCH_CHARS_MAX
  })
}
