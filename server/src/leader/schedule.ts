import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import type { Definition } from '../core/definition.ts'
import { planTicks } from '../core/ticks.ts'
import type { FairTags } from '../services/fair-tags.ts'
import type { Meter } from '../services/meter.ts'
import type { Settings } from '../services/settings.ts'
import {
  findDue,
  findNextTick,
  findWaitingTicks,
  makeTicks,
  type Planned,
  type Tick,
  tryWaitingTicks,
} from '../store/commands/ticks.ts'
import type { Store } from '../store/port.ts'
import type { ClockWatch } from './clock-watch.ts'
import type { Leading } from './elect.ts'

export interface ScheduleOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  settings: Settings
  fairTags: Pick<FairTags, 'tagFor'>
  clock: Pick<ClockWatch, 'observe' | 'evenMs'>
  onTrouble(where: string, error: unknown): void
}

const FIRST = '00000000-0000-0000-0000-000000000000'

/** Makes the jobs of the ticks that are due, and of those that waited, for one term; a bounded batch at a time. */
export function createSchedule(options: ScheduleOptions, leading: Leading): () => Promise<number | null> {
  const { world, store, bus, meter, settings, fairTags, clock, onTrouble } = options
  const maker = { newId: world.uuid, tagOf: fairTags.tagFor }
  /** Definitions with ticks that wait have their turns in the order of ids. */
  let tried = FIRST
  /** Definitions whose rule cannot be read, and was complained about. */
  const unreadable = new Set<string>()

  function tell(ticks: readonly Tick[]): void {
    for (const { outcome, lateMs } of ticks) meter.ticked(outcome, lateMs)
    bus.wake([...new Set(ticks.flatMap(({ wakes }) => (wakes === null ? [] : [`queue:${wakes}` as const])))])
  }

  function plan(definition: Definition, lateness: { nowMs: number; evenMs: number; max: number }): Planned[] {
    const { schedule, nextTickAtMs: dueAtMs } = definition
    if (schedule === null || dueAtMs === null) return []
    try {
      return [{ definition, dueAtMs, plan: planTicks(schedule, { dueAtMs, ...lateness }) }]
    } catch (error) {
      // A time zone that this node does not know must not hold up the others. It is overdue, until a node knows it.
      if (!unreadable.has(definition.id)) onTrouble(`schedule of ${definition.name}`, error)
      unreadable.add(definition.id)
      return []
    }
  }

  async function make(planned: readonly Planned[]): Promise<Tick[]> {
    if (planned.length === 0) return []
    try {
      return await store.write(makeTicks(leading, planned, maker))
    } catch (error) {
      // A user with limits whose row somebody has locked must not hold up all others.
      const byUser = Map.groupBy(planned, ({ definition }) => definition.userId)
      if (byUser.size === 1) throw error
      const made: Tick[] = []
      for (const [userId, own] of byUser) {
        if (!leading.trusted()) break
        const ticks = await store.write(makeTicks(leading, own, maker)).catch((cause: unknown) => {
          onTrouble(`schedules of ${userId}`, cause)
          return []
        })
        made.push(...ticks)
      }
      return made
    }
  }

  /** Whether there is more to do at once. */
  async function tryWaiting(batchMax: number): Promise<boolean> {
    const waiting = await store.read(findWaitingTicks(tried, batchMax))
    tried = waiting.length === batchMax ? (waiting.at(-1)?.definitionId ?? FIRST) : FIRST
    if (waiting.length === 0) return false
    const made = await store.write(tryWaitingTicks(leading, waiting, maker))
    tell(made)
    return made.length > 0 || tried !== FIRST
  }

  return async () => {
    const batchMax = settings.get('schedule_batch_max')
    // They were due before anything that is due now.
    const moreWaits = await tryWaiting(batchMax)
    const askedMs = world.monotonic()
    const { definitions, nowMs } = await store.read(findDue(batchMax))
    clock.observe(nowMs, askedMs)
    const max = Math.max(1, Math.floor(batchMax / definitions.length))
    const planned = definitions.flatMap((one) => plan(one, { nowMs, evenMs: clock.evenMs, max }))
    const made = await make(planned)
    tell(made)
    // What is due and was passed over, because somebody has it locked or it was changed, has its turn after the interval.
    if (moreWaits || made.length > 0) return 0
    const nextInMs = await store.read(findNextTick())
    return nextInMs !== null && nextInMs > 0 ? nextInMs : null
  }
}
