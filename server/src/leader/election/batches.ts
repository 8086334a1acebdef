import type { Bus } from '../../bus/port.ts'
import type { Leading } from './elect.ts'

/** What the duties that make jobs have in common. */

/** Payloads have up to 1 MB: a transaction beyond this gains nothing and holds its locks longer. */
export const BATCH_CHARS_MAX = 4 * 1024 * 1024
/** Before every id. */
export const FIRST = '00000000-0000-0000-0000-000000000000'

/** Those whose jobs a worker can have now. */
export function wakeQueues(bus: Bus, made: readonly { wakes: string | null }[]): void {
  bus.wake([...new Set(made.flatMap(({ wakes }) => (wakes === null ? [] : [`queue:${wakes}` as const])))])
}

interface Attempt<T, R> {
  attempt(some: readonly T[]): Promise<R[]>
  leading: Leading
  onTrouble(where: string, error: unknown): void
}

/** All at once; when that fails, each group by itself, so that one that cannot be carried out does not hold up the others. */
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
