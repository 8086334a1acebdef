import type { Bus } from '../../bus/port.ts'
import type { Deps } from '../../services/deps.ts'
import type { FairTags } from '../../services/leasing/fair-tags.ts'
import type { Tagged } from '../../store/leasing/fair-tags.ts'
import type { Command } from '../../store/port.ts'
import type { MadeJob, Maker } from '../../store/schedules/definition-jobs.ts'
import type { Leading } from './elect.ts'

/** Shared by the duties that make jobs. */

/** The dependencies of these duties. */
export interface MakerDeps extends Pick<Deps, 'world' | 'store' | 'bus' | 'meter' | 'settings'> {
  fairTags: Pick<FairTags, 'learnFrom'>
}

/** Payloads have up to 1 MB. A larger transaction gains nothing and holds its locks longer. */
export const BATCH_CHARS_MAX = 4 * 1024 * 1024

/** Runs a command that makes jobs. Then wakes the queues whose new jobs can be leased now. */
export async function makeJobs<T>(
  { world, store, bus, meter, fairTags }: MakerDeps,
  commandOf: (maker: Maker) => Command<T>,
  madeIn: (answer: T) => readonly Pick<MadeJob, 'ready' | 'madeIn'>[],
): Promise<T> {
  const readyIn = (answer: T) => madeIn(answer).flatMap(({ ready }) => ready ?? [])
  const run = (leased: Maker['leased']) => store.write(commandOf({ newId: world.uuid, leased }))
  const answer = await fairTags.learnFrom(run, readyIn)
  for (const { madeIn: queue } of madeIn(answer)) if (queue !== undefined) meter.made(queue)
  wakeQueues(bus, readyIn(answer))
  return answer
}

export function wakeQueues(bus: Bus, ready: readonly Tagged[]): void {
  bus.wake([...new Set(ready.map(({ queue }) => `queue:${queue}` as const))])
}

interface Attempt<T, R> {
  attempt(some: readonly T[]): Promise<R[]>
  leading: Leading
  onTrouble(where: string, error: unknown): void
}

/**
 * Tries all at once. If that fails, it tries each group by itself, so that one failing group does not delay the others.
 */
export async function eachByItself<T, R>(
  { attempt, leading, onTrouble }: Attempt<T, R>,
  all: readonly T[],
  groupOf: (one: T) => string,
): Promise<R[]> {
  if (all.length === 0) return []
  try {
    return await attempt(all)
  } catch (error) {
    const groups = Map.groupBy(all, groupOf)
    if (groups.size === 1) throw error
    const results: R[] = []
    for (const [group, own] of groups) {
      if (!leading.trusted()) break
      const some = await attempt(own).catch((cause: unknown) => {
        onTrouble(group, cause)
        return []
      })
      results.push(...some)
    }
    return results
  }
}
