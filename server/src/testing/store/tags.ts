import { realWorld } from '../../node/world.ts'
import type { TagsFor } from '../../store/leasing/fair-tags.ts'

/** For tests in which the order of runs does not matter. */
export const tagged = (tag: number): TagsFor =>
  function* (places) {
    return places.map(() => tag)
  }

/** Orders runs by the time at which they became due. */
export const byRunAt: TagsFor = function* (places) {
  return places.map(({ runAtMs }) => runAtMs ?? 0)
}

/** Places runs behind all runs that scenes have submitted. */
export const byClock: TagsFor = function* (places) {
  return places.map(() => realWorld.now())
}
