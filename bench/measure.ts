/** Statistics, and the loops that produce their values. */

export function quantile(values: readonly number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  const place = (sorted.length - 1) * q
  const below = sorted[Math.floor(place)]
  const above = sorted[Math.ceil(place)]
  if (below === undefined || above === undefined) throw new RangeError('There is nothing to measure')
  return below + (above - below) * (place - Math.floor(place))
}

export const median = (values: readonly number[]): number => quantile(values, 0.5)

/**
 * Runs the measures in turn (peer, ours, peer, ours …), so that other load on the machine affects all of them alike.
 * Resolves with the values of each, in the order of the rounds, without warm-up rounds.
 */
export async function interleave<Name extends string, Value>(
  { warmUps, rounds }: { warmUps: number; rounds: number },
  measures: Readonly<Record<Name, () => Promise<Value>>>,
): Promise<Record<Name, Value[]>> {
  const names = Object.keys(measures) as Name[]
  const found = Object.fromEntries(names.map((name) => [name, []])) as unknown as Record<Name, Value[]>
  for (let round = -warmUps; round < rounds; round++) {
    for (const name of names) {
      const value = await measures[name]()
      if (round >= 0) found[name].push(value)
    }
  }
  return found
}

export interface Load {
  callers: number
  durationMs: number
}

export interface Flow {
  calls: number
  elapsedMs: number
}

/** Runs `callers` callers, each with one call at a time, until the time is up. `n` counts the calls. */
export async function flow({ callers, durationMs }: Load, call: (n: number) => Promise<void>): Promise<Flow> {
  const began = performance.now()
  const endMs = began + durationMs
  let next = 0
  async function caller(): Promise<void> {
    while (performance.now() < endMs) await call(next++)
  }
  await Promise.all(Array.from({ length: callers }, caller))
  return { calls: next, elapsedMs: performance.now() - began }
}

/** The milliseconds of one call. */
export async function time(call: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  await call()
  return performance.now() - began
}
