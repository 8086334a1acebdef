import type { World } from '@ichido/sdk/world'
import type { Bus } from '../../bus/port.ts'
import { ticksBetween } from '../../core/schedule/schedule.ts'
import type { FairTags } from '../../services/leasing/fair-tags.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Settings } from '../../services/system/settings.ts'
import type { Store } from '../../store/port.ts'
import { type RunningBackfill, runningBackfills, stepBackfill } from '../../store/schedules/backfills.ts'
import type { Term } from '../../store/system/leadership.ts'
import { BATCH_CHARS_MAX, FIRST, wakeQueues } from '../election/batches.ts'

const BACKFILLS_MAX = 20

interface BackfillOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  settings: Settings
  fairTags: Pick<FairTags, 'tagsFor'>
}

/** Goes on with every backfill that runs, one bounded step of each in turn. */
export function createBackfill(options: BackfillOptions, term: Term): () => Promise<number | null> {
  const { world, store, bus, meter, settings, fairTags } = options
  const maker = { newId: world.uuid, tagsFor: fairTags.tagsFor }
  /** Those that wait for a quota or for a job must not keep the ones behind them from their turn. */
  let after = FIRST
  /** Since all had their last turn. */
  let moved = false

  async function step({ backfill, definition }: RunningBackfill): Promise<boolean> {
    const { atMs, toMs, schedule } = backfill
    const fitting = Math.max(1, Math.floor(BATCH_CHARS_MAX / (definition?.payload.length ?? 1)))
    const max = Math.min(settings.get('schedule_batch_max'), fitting)
    const ticks = definition === null ? [] : ticksBetween(schedule, atMs, toMs, max)
    const { made, goesOn } = await store.write(stepBackfill(term, { backfill, definition, ticks }, maker))
    for (const { outcome } of made) meter.ticked(outcome, null)
    wakeQueues(bus, made)
    return goesOn
  }

  return async () => {
    const found = await store.read(runningBackfills(BACKFILLS_MAX, after))
    const failures: unknown[] = []
    for (const running of found) {
      // One that fails does not hold up the others.
      moved = (await step(running).catch((error: unknown) => failures.push(error) === 0)) || moved
    }
    const full = found.length === BACKFILLS_MAX
    const more = full || moved
    after = full ? (found.at(-1)?.backfill.backfillId ?? FIRST) : FIRST
    moved = full && moved
    if (failures.length > 0) throw failures[0]
    return more ? 0 : null
  }
}
