import type { Relay } from '../../bus/port.ts'
import type { Deps } from '../../services/deps.ts'
import { FIRST_EVENT, findEventNames, findLastPlace, findNamed } from '../../store/events/all-events.ts'
import { beginWatermark, moveWatermark, type Watermark } from '../../store/events/relay.ts'
import { readClock } from '../../store/system/leadership.ts'
import type { Leading } from '../election/elect.ts'

type RelayOptions = Pick<Deps, 'store' | 'settings'> & { relay: Relay }

/** Events of one read. Each has up to 64 KiB. */
const READ_MAX = 500
/** Checkpoints during the lifetime of a state. */
const CHECKPOINTS = 10

/**
 * Relays the events that nodes did not: they died, Redis was unreachable, or there were too many events. Only the
 * leader relays lifecycle events. Every event is offered, and Redis skips those with a mark.
 */
export function createRelay({ store, relay, settings }: RelayOptions, leading: Leading): () => Promise<number | null> {
  let mark: Watermark | null = null
  let rewoundAtMs = Number.NEGATIVE_INFINITY

  const stateTtlMs = () => settings.get('event_state_ttl_seconds') * 1_000

  async function keep(next: Watermark): Promise<boolean> {
    if (!(await store.write(moveWatermark(leading, next)))) return false
    mark = next
    return true
  }

  /**
   * A Redis that evicts loses keys while the events are sent again. So it gets everything at most once in the lifetime
   * of a state.
   */
  const isSpared = async (nowMs: number) => nowMs - rewoundAtMs < stateTtlMs() && (await relay.evicts())

  /** Redis lost its data: all events that may be a state are offered again. */
  async function rewind({ place, checkpoints }: Watermark, nowMs: number): Promise<boolean> {
    const since = checkpoints.findLast(({ atMs }) => atMs < nowMs - stateTtlMs()) ?? checkpoints[0]
    const from = since === undefined || since.tx > place.tx ? place : { ...FIRST_EVENT, tx: since.tx }
    if (!(await keep({ place: from, checkpoints: checkpoints.filter(({ tx }) => tx <= from.tx) }))) return false
    if (from !== place) rewoundAtMs = nowMs
    relay.forget()
    await relay.remember()
    return true
  }

  function withCheckpoint({ place, checkpoints }: Watermark, nowMs: number): Watermark {
    const last = checkpoints.at(-1)
    if (last !== undefined && nowMs - last.atMs < stateTtlMs() / CHECKPOINTS) return { place, checkpoints }
    const first = checkpoints.findLastIndex(({ atMs }) => atMs < nowMs - stateTtlMs())
    return { place, checkpoints: [...checkpoints.slice(Math.max(0, first)), { atMs: nowMs, tx: place.tx }] }
  }

  return async () => {
    const found = await relay.look()
    // The relay reports the trouble itself, and the events wait in the store.
    if (found === 'away' || found === 'full') return null
    if (mark === null) {
      // Another leader may have found Redis empty without this node's knowledge.
      relay.forget()
      mark = await store.write(beginWatermark())
    }
    const nowMs = await store.read(readClock())
    if (found === 'emptied') {
      if (await isSpared(nowMs)) await relay.remember()
      else if (!(await rewind(mark, nowMs))) return null
    }
    let passesOver = false
    const passed = (from: number, to: number) => {
      const taken = relay.taken(from, to)
      passesOver ||= taken.length > 0
      return taken
    }
    const batch = await store.write(findEventNames(mark.place, settings.get('relay_batch_max'), passed))
    if (batch === null) {
      // The watermark belongs to another store.
      relay.forget()
      await keep({ place: await store.write(findLastPlace()), checkpoints: [] })
      return null
    }
    const missing = await relay.missing(batch.events)
    for (let i = 0; i < missing.length; i += READ_MAX) {
      await relay.sweep(await store.write(findNamed(missing.slice(i, i + READ_MAX))), nowMs)
    }
    const next = withCheckpoint({ place: batch.next, checkpoints: mark.checkpoints }, nowMs)
    // Redis may have lost the events that were passed over.
    if (passesOver && (await relay.look()) !== 'ready') return null
    const isNews = batch.events.length > 0 || passesOver || next.checkpoints !== mark.checkpoints
    mark = next
    // Every transaction moves the place. Without events it is not worth another transaction to store it.
    if (isNews && !(await keep(next))) return null
    return batch.caughtUp ? null : 0
  }
}
