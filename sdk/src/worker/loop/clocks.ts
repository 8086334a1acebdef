import type { World } from '../../world.ts'

/** An instant, as several clocks tell it: each of them can stand still or jump where another does not. */
export type Mark = Readonly<Record<string, number>>

/** Reads all the clocks, in ms. */
export type Clocks = () => Mark

/** A process that shares the control plane's machine, or knows no better: the clock that its timers go by. */
export function monotonicOnly(world: World): Clocks {
  return () => ({ monotonic: world.monotonic() })
}

/** The most that any clock says has gone by: a machine that slept has let time pass, whichever clock noticed it. */
export function elapsedMs(from: Mark, to: Mark): number {
  let most = Number.NEGATIVE_INFINITY
  for (const name of Object.keys(from)) {
    const ms = from[name] ?? 0
    most = Math.max(most, (to[name] ?? ms) - ms)
  }
  return most
}
