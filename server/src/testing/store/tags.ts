import { realWorld } from '../../node/world.ts'
import type { TagsFor } from '../../store/leasing/fair-tags.ts'

/** Where the order of runs does not matter. */
export const tagged = (tag: number): TagsFor =>
  function* (places) {
    return places.map(() => tag)
  }

/** In the order in which they became due. */
export const byRunAt: TagsFor = function* (places) {
  return places.map(({ runAtMs }) => runAtMs ?? 0)
}

/** Behind all that scenes have submitted. */
export const byClock: TagsFor = function* (places) {
  return places.map(() => realWorld.now())
}
