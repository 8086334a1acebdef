import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import { ticksBetween } from '../core/schedule.ts'
import type { FairTags } from '../services/fair-tags.ts'
import type { Meter } from '../services/meter.ts'
import type { Settings } from '../services/settings.ts'
import { type RunningBackfill, runningBackfills, stepBackfill } from '../store/commands/backfills.ts'
import type { Term } from '../store/commands/leadership.ts'
import type { Store } from '../store/port.ts'

const BACKFILLS_MAX = 20
/** As of a batch of ticks. */
const BATCH_CHARS_MAX = 4 * 1024 * 1024

interface BackfillOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  settings: Settings
  fairTags: Pick<FairTags, 'tagFor'>
}

/** Goes on with every backfill that runs, one bounded step of each in turn. */
export function createBackfill(options: BackfillOptions, term: Term): () => Promise<number | null> {
  const { world, store, bus, meter, settings, fairTags } = options
  const maker = { newId: world.uuid, tagOf: fairTags.tagFor }

  async function step({ backfill, definition }: RunningBackfill): Promise<boolean> {
    const { atMs, toMs } = backfill
    const schedule = definition?.schedule ?? null
    const fitting = Math.max(1, Math.floor(BATCH_CHARS_MAX / (definition?.payload.length ?? 1)))
    const max = Math.min(settings.get('schedule_batch_max'), fitting)
    const ticks = schedule === null ? [] : ticksBetween(schedule, atMs, toMs, max)
    const usable = schedule === null ? null : definition
    const { made, goesOn } = await store.write(stepBackfill(term, { backfill, definition: usable, ticks }, maker))
    for (const { outcome } of made) meter.ticked(outcome, null)
    bus.wake([...new Set(made.flatMap(({ wakes }) => (wakes === null ? [] : [`queue:${wakes}` as const])))])
    return goesOn
  }

  return async () => {
    let more = false
    for (const running of await store.read(runningBackfills(BACKFILLS_MAX))) more = (await step(running)) || more
    return more ? 0 : null
  }
}
