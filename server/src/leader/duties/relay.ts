import type { Relay } from '../../bus/port.ts'
import type { Settings } from '../../services/system/settings.ts'
import { findEventNames, findNamed } from '../../store/events/all-events.ts'
import { beginWatermark, moveWatermark, type Watermark } from '../../store/events/relay.ts'
import { FIRST_EVENT, findLastPlace } from '../../store/events/walk-events.ts'
import type { Store } from '../../store/port.ts'
import { readClock } from '../../store/system/leadership.ts'
import type { Leading } from '../election/elect.ts'

export interface RelayOptions {
  store: Store
  relay: Relay
  settings: Settings
}

/** Events of one read; each has up to 64 KiB. */
const READ_MAX = 500
/** In the time that a state is kept. */
const CHECKPOINTS = 10

/**
 * Takes to Redis what nodes did not: they died before they could, Redis was away, too much came at once, or, of lifecycle
 * events, nobody does it but the leader. Each event is offered; those with a mark are there already.
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
   * A Redis that evicts loses something again while it is given what it lost, so it is given everything at most once in the
   * time that a state is kept.
   */
  const isSpared = async (nowMs: number) => nowMs - rewoundAtMs < stateTtlMs() && (await relay.evicts())

  /** Redis has lost what it had: all that may be a state there is offered again. */
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
    // The relay tells of it by itself; what is left waits in the store.
    if (found === 'away' || found === 'full') return null
    if (mark === null) {
      // Another leader may have found Redis empty, and this node have heard nothing of it.
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
      // The store is another one than the watermark is of.
      relay.forget()
      await keep({ place: await store.write(findLastPlace()), checkpoints: [] })
      return null
    }
    const missing = await relay.missing(batch.events)
    for (let i = 0; i < missing.length; i += READ_MAX) {
      await relay.sweep(await store.write(findNamed(missing.slice(i, i + READ_MAX))), nowMs)
    }
    const next = withCheckpoint({ place: batch.next, checkpoints: mark.checkpoints }, nowMs)
    // It may have gone away while it was believed to have what was passed over.
    if (passesOver && (await relay.look()) !== 'ready') return null
    const isNews = batch.events.length > 0 || passesOver || next.checkpoints !== mark.checkpoints
    mark = next
    // Without events the place moves with every transaction: that alone is not worth one more.
    if (isNews && !(await keep(next))) return null
    return batch.caughtUp ? null : 0
  }
}
