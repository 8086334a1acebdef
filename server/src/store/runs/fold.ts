import type { RunCommand } from '../../core/run/run-state.ts'
import type { Work } from '../statement.ts'
import { factsOf, fits } from './run-facts.ts'

/** Splits a batch into the first item of each name and those that come after it, which must see what it did. */
export function foldBy<T>(items: readonly T[], nameOf: (item: T) => string): { firsts: T[]; repeats: [T, T][] } {
  const firstOf = new Map<string, T>()
  const repeats: [T, T][] = []
  for (const item of items) {
    const name = nameOf(item)
    const first = firstOf.get(name)
    if (first === undefined) firstOf.set(name, item)
    else repeats.push([item, first])
  }
  return { firsts: [...firstOf.values()], repeats }
}

/**
 * Tries the items of a batch of which several may name one run, at most one a run at a time: a stranger's item that fits
 * nothing must not keep the holder's, which came after it, from being tried. `attempt` answers with the rows it changed, and
 * `commandOf` says what an item asks for.
 */
export function* tryOnePerRun<T extends { runId: string }, Row>(
  items: readonly T[],
  attempt: (firsts: T[]) => Work<Map<string, Row>>,
  commandOf: (item: T) => RunCommand,
): Work<{ changed: [T, Row][]; missed: T[] }> {
  const changed: [T, Row][] = []
  const missed: T[] = []
  let rest = items
  while (rest.length > 0) {
    const { firsts, repeats } = foldBy(rest, (item) => item.runId)
    const rows = yield* attempt(firsts)
    for (const item of firsts) {
      const row = rows.get(item.runId)
      if (row === undefined) missed.push(item)
      else changed.push([item, row])
    }
    const behind = repeats.map(([item]) => item)
    const untried = behind.filter((item) => !rows.has(item.runId))
    const fitting = yield* findFitting(untried, commandOf)
    missed.push(...behind.filter((item) => !fitting.has(item)))
    rest = untried.filter((item) => fitting.has(item))
  }
  return { changed, missed }
}

/**
 * Those that would change their run as it is now. The write decides all the same; but a thousand items that fit nothing,
 * tried one by one, held up everybody else's for as many statements.
 */
function* findFitting<T extends { runId: string }>(
  items: readonly T[],
  commandOf: (item: T) => RunCommand,
): Work<Set<T>> {
  const facts = yield* factsOf(foldBy(items, ({ runId }) => runId).firsts)
  return new Set(items.filter((item) => fits(facts.get(item.runId), commandOf(item))))
}
