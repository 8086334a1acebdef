import { sleep, type World } from '@ichido/sdk/world'
import type { Bus, Topic } from '../../bus/port.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Store } from '../../store/port.ts'
import { type LeadershipStatus, renewTerm, resignTerm, type Term, tryToLead } from '../../store/system/leadership.ts'
import type { ClockWatch } from './clock-watch.ts'
import { Loop, type LoopOptions } from './loop.ts'

/** A leader that is killed is missed after this long; a look a second and two for its open transaction come on top. */
const TTL_MS = 5_000
/** A folder has one process, which finds leadership vacant when it starts: renewing often would only wear its disk. */
const FOLDER_TTL_MS = 600_000
const RENEWALS_IN_TTL = 3
const LOOK_MS = 1_000
/** Trust ends a little before the store lets somebody else in. */
const TRUST = 0.9
/** Whoever cannot resign in time is missed after its time is up. */
const RESIGN_WITHIN_MS = 1_000

/** A term of this node, and whether it may still act on it. The store's fence is what holds; this only spares the try. */
export interface Leading extends Term {
  trusted(): boolean
}

/** This node has begun to lead; or it no longer does, and why. `epoch` is the one that it leads or led in. */
export type LeadershipChange = { leads: true; epoch: number } | { leads: false; epoch: number; why: WhyNot }

type WhyNot = 'resigned' | 'term lapsed' | 'database restarted' | `epoch ${number} began`

export interface Duty extends Pick<LoopOptions, 'name' | 'intervalMs' | 'tick'> {
  /** Its next tick comes at once when this is told. */
  wokenBy?: Topic
}

export interface ElectionOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  clock: ClockWatch
  onTrouble(name: string, error: unknown): void
  onChange(change: LeadershipChange): void
  /** What this node does while it leads and trusts its term; made anew for every term. */
  duties(leading: Leading): Duty[]
}

/** Takes part in the election of the leader, and while this node is it, runs the leader's duties. */
export class Election {
  readonly #options: ElectionOptions
  readonly #holder: string
  readonly #ttlMs: number
  readonly #loop: Loop
  #unsubscribe = () => {}
  #term: Term | null = null
  #trustedUntilMs = 0
  /** As the store last had it. */
  #epoch = 0
  #server = ''
  /** In which this node was last said to lead. */
  #ledEpoch: number | null = null
  #callOffLapse = () => {}
  #duties: Loop[] = []
  #unsubscribeDuties: (() => void)[] = []
  #ending: Promise<unknown> = Promise.resolve()

  constructor(options: ElectionOptions) {
    const { world, store, meter, onTrouble } = options
    this.#options = options
    this.#holder = world.uuid()
    this.#ttlMs = store.engine === 'sqlite' ? FOLDER_TTL_MS : TTL_MS
    const intervalMs = Math.max(LOOK_MS, Math.floor(this.#ttlMs / RENEWALS_IN_TTL))
    this.#loop = new Loop({
      name: 'elect',
      world,
      meter,
      intervalMs: () => intervalMs,
      tick: () => this.#tick(),
      onTrouble,
    })
  }

  /** The epoch that this node leads in; null while another one leads, or nobody. */
  get epoch(): number | null {
    return this.#term?.epoch ?? null
  }

  /** Those that run: the election's own, and while this node leads, its duties. */
  get loops(): readonly Loop[] {
    return [this.#loop, ...this.#duties]
  }

  start(): void {
    this.#loop.start()
    this.#unsubscribe = this.#options.bus.subscribe('leadership', () => {
      if (this.#term === null) this.#loop.hurry()
    })
  }

  /** Resigns, so that the next node need not wait for the time to run out. */
  async stop(): Promise<void> {
    const { world, store, bus, onTrouble } = this.#options
    this.#unsubscribe()
    await this.#loop.stop()
    const term = this.#term
    this.#end()
    if (term !== null) this.#tell('resigned')
    await this.#ending
    if (term === null || world.monotonic() >= this.#trustedUntilMs) return
    const resigned = store.write(resignTerm(term)).then(
      () => bus.wake(['leadership']),
      (error: unknown) => onTrouble('resign', error),
    )
    const done = new AbortController()
    await Promise.race([resigned, sleep(world, RESIGN_WITHIN_MS, done.signal)])
    done.abort()
  }

  async #tick(): Promise<number | null> {
    const { world, store, clock } = this.#options
    const term = this.#term
    // The time counts from when it was asked for: the answer may have been on its way for long.
    const beganMs = world.monotonic()
    const standing = await store.write(
      term === null ? tryToLead(this.#holder, this.#ttlMs) : renewTerm(term, this.#ttlMs),
    )
    clock.observe(standing.nowMs, beganMs)
    // A promoted replica may lack what the leader remembers: its duties begin anew, in the next epoch.
    const restarted = standing.held && term !== null && standing.server !== this.#server
    const held = standing.held && !restarted
    if (held) this.#trustedUntilMs = beganMs + this.#ttlMs * TRUST
    if (held && term === null) this.#begin(standing)
    if (!held && term !== null) this.#end()
    this.#epoch = standing.epoch
    this.#server = standing.server
    if (restarted) this.#tell('database restarted')
    else this.#tell(held ? 'term lapsed' : `epoch ${standing.epoch} began`)
    if (restarted) return 0
    return this.#term === null ? LOOK_MS : null
  }

  /**
   * Says whether this node leads, and why not if it did until now. Once its term is over without having been renewed it says so
   * again by itself: no tick may come to its end by then.
   */
  #tell(whyNot: WhyNot): void {
    const { world, meter, onChange } = this.#options
    this.#callOffLapse()
    const trustedMs = this.#term === null ? 0 : this.#trustedUntilMs - world.monotonic()
    const leads = trustedMs > 0
    meter.leadership(leads, this.#epoch)
    this.#callOffLapse = leads ? world.after(trustedMs, () => this.#tell('term lapsed')) : () => {}
    if (leads && this.#ledEpoch === null) onChange({ leads, epoch: this.#epoch })
    if (!leads && this.#ledEpoch !== null) onChange({ leads, epoch: this.#ledEpoch, why: whyNot })
    this.#ledEpoch = leads ? this.#epoch : null
  }

  #begin({ epoch }: LeadershipStatus): void {
    const { world, bus, meter, onTrouble, duties } = this.#options
    const term = { holder: this.#holder, epoch }
    this.#term = term
    const trusted = () => this.#term === term && world.monotonic() < this.#trustedUntilMs
    this.#duties = duties({ ...term, trusted }).map(({ wokenBy, ...duty }) => {
      const loop = new Loop({ ...duty, world, meter, when: trusted, onTrouble })
      if (wokenBy !== undefined) this.#unsubscribeDuties.push(bus.subscribe(wokenBy, () => loop.hurry()))
      return loop
    })
    for (const duty of this.#duties) duty.start()
  }

  /** What is under way is not waited for: it may hang on the store, and changes nothing any more. */
  #end(): void {
    this.#term = null
    for (const unsubscribe of this.#unsubscribeDuties.splice(0)) unsubscribe()
    this.#ending = Promise.all([this.#ending, ...this.#duties.map((duty) => duty.stop())])
    this.#duties = []
  }
}
