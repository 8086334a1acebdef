import { EmbeddedBus } from '../../bus/embedded.ts'
import { createReap } from '../../leader/duties/reap.ts'
import type { Leading } from '../../leader/election/elect.ts'
import { realWorld } from '../../node/world.ts'
import { silentMeter } from '../../services/system/meter.ts'
import { defaultSettings } from '../../services/system/settings.ts'
import type { Store } from '../../store/port.ts'
import type { Term } from '../../store/system/term.ts'
import { integer } from '../store/rows.ts'
import { only } from '../store/scene.ts'
import { sql, unique } from '../store/store.ts'

/** A clock watch that has never seen a jump. */
export const EVEN = { observe() {}, evenMs: Number.MAX_SAFE_INTEGER }

/** Takes the leadership from any holder. */
export async function seize(store: Store): Promise<Term> {
  const holder = unique('node')
  const rows = await sql(
    store,
    `UPDATE ichido.leadership SET holder = $1, epoch = epoch + 1, expires_at = now_ms() + 3600000 RETURNING epoch`,
    holder,
  )
  return { holder, epoch: integer(only(rows), 'epoch') }
}

export const trusting = (term: Term): Leading => ({ ...term, trusted: () => true })

/** A reaper that the test calls, and whose own clock the test moves. */
export class Reaper {
  readonly term: Term
  /** The states that runs ended in. */
  readonly ended: string[] = []
  readonly tick: () => Promise<number | null>
  #passedMs = 0

  private constructor(store: Store, term: Term) {
    const world = { ...realWorld, monotonic: () => realWorld.monotonic() + this.#passedMs }
    const meter = { ...silentMeter, ended: (state: string) => void this.ended.push(state) }
    this.term = term
    const given = { world, store, bus: new EmbeddedBus(), meter, settings: defaultSettings }
    this.tick = createReap({ ...given, clock: EVEN, leading: trusting(term) })
  }

  static async of(store: Store): Promise<Reaper> {
    return new Reaper(store, await seize(store))
  }

  /** Moves only the reaper's clock, not the stored times. */
  pass(ms: number): void {
    this.#passedMs += ms
  }

  /** Ticks until there is nothing left to do. */
  async reap(): Promise<void> {
    while ((await this.tick()) === 0);
  }

  /** Marks the runs with expired leases, lets the continuation time pass, and ends them. */
  async reapAll(waitMs = 86_400_000): Promise<void> {
    await this.reap()
    this.pass(waitMs)
    await this.reap()
  }
}
