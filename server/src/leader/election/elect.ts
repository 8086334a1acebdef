import { sleep, type World } from '@ichido/sdk/world'
import type { Bus, Topic } from '../../bus/port.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Store } from '../../store/port.ts'
import { type LeadershipStatus, renewTerm, resignTerm, tryToLead } from '../../store/system/leadership.ts'
import type { Term } from '../../store/system/term.ts'
import type { ClockWatch } from './clock-watch.ts'
import { Loop, type LoopOptions } from './loop.ts'

/**
 * A killed leader loses its term after this time. Up to a second until the next look and two seconds for its open
 * transaction are added.
 */
const TTL_MS = 5_000
/**
 * A folder has one process, which finds the leadership vacant when it starts. Frequent renewals would only wear the
 * disk.
 */
const FOLDER_TTL_MS = 600_000
const RENEWALS_IN_TTL = 3
const LOOK_MS = 1_000
/** A leader stops trusting its term a little before the store lets another node lead. */
const TRUST = 0.9
/** If resigning takes longer, the term simply expires. */
const RESIGN_WITHIN_MS = 1_000

/**
 * A term of this node, and whether it may still act on it. The fence in the store guarantees this; `trusted` only saves
 * futile attempts.
 */
export interface Leading extends Term {
  trusted(): boolean
}

/** This node begins to lead, or no longer leads, and why. `epoch` is the epoch that it leads or led in. */
export type LeadershipChange = { leads: true; epoch: number } | { leads: false; epoch: number; why: WhyNot }

type WhyNot = 'resigned' | 'term lapsed' | 'database restarted' | `epoch ${number} began`

export interface Duty extends Pick<LoopOptions, 'name' | 'intervalMs' | 'tick'> {
  /** This topic makes the next tick run at once. */
  wokenBy?: Topic
}

interface ElectionOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  clock: ClockWatch
  onTrouble(name: string, error: unknown): void
  onChange(change: LeadershipChange): void
  /** The duties while this node leads and trusts its term. They are created for each term. */
  duties(leading: Leading): Duty[]
}

/** Takes part in the election, and runs the leader's duties while this node leads. */
export class Election {
  readonly #options: ElectionOptions
  readonly #holder: string
  readonly #ttlMs: number
  readonly #loop: Loop
  #unsubscribe = () => {}
  #term: Term | null = null
  #beganAtMs = 0
  #trustedUntilMs = 0
  /** The epoch and the server, as the store last reported them. */
  #epoch = 0
  #server = ''
  /** The epoch in which this node last reported to lead. */
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

  /** The epoch in which this node leads; null while it does not lead. */
  get epoch(): number | null {
    return this.#term?.epoch ?? null
  }

  /** Since when this node leads; null while it does not lead. */
  get leadsSinceMs(): number | null {
    return this.#term === null ? null : this.#beganAtMs
  }

  /** The loop of the election, and the duties while this node leads. */
  get loops(): readonly Loop[] {
    return [this.#loop, ...this.#duties]
  }

  start(): void {
    this.#loop.start()
    this.#unsubscribe = this.#options.bus.subscribe('leadership', () => {
      if (this.#term === null) this.#loop.hurry()
    })
  }

  /** Resigns, so that the next node need not wait for the term to expire. */
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
    // The term counts from when the renewal was sent, because the answer may be slow.
    const beganMs = world.monotonic()
    const status = await store.write(
      term === null ? tryToLead(this.#holder, this.#ttlMs) : renewTerm(term, this.#ttlMs),
    )
    clock.observe(status.nowMs, beganMs)
    // A promoted replica may lack what the leader remembers, so its duties start again in the next epoch.
    const restarted = status.held && term !== null && status.server !== this.#server
    const held = status.held && !restarted
    if (held) this.#trustedUntilMs = beganMs + this.#ttlMs * TRUST
    if (held && term === null) this.#begin(status)
    if (!held && term !== null) this.#end()
    this.#epoch = status.epoch
    this.#server = status.server
    if (restarted) this.#tell('database restarted')
    else this.#tell(held ? 'term lapsed' : `epoch ${status.epoch} began`)
    if (restarted) return 0
    return this.#term === null ? LOOK_MS : null
  }

  /**
   * Reports whether this node leads, and why not if it led until now. When the term expires without a renewal, a timer
   * reports it, because no tick may end by then.
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
    this.#beganAtMs = world.now()
    const trusted = () => this.#term === term && world.monotonic() < this.#trustedUntilMs
    this.#duties = duties({ ...term, trusted }).map(({ wokenBy, ...duty }) => {
      const loop = new Loop({ ...duty, world, meter, when: trusted, onTrouble })
      if (wokenBy !== undefined) this.#unsubscribeDuties.push(bus.subscribe(wokenBy, () => loop.hurry()))
      return loop
    })
    for (const duty of this.#duties) duty.start()
  }

  /** Running duties are not waited for: they may hang on the store, and the fence stops their writes. */
  #end(): void {
    this.#term = null
    for (const unsubscribe of this.#unsubscribeDuties.splice(0)) unsubscribe()
    this.#ending = Promise.all([this.#ending, ...this.#duties.map((duty) => duty.stop())])
    this.#duties = []
  }
}
