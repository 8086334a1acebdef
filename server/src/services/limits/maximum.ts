import { DEFAULT_PRIORITY, IchidoError } from '@ichido/sdk/protocol'
import { invalid, type Problem } from '../../core/json/problem.ts'
import { type Caller, can } from '../../core/limits/roles.ts'
import type { SettingName } from '../../core/limits/settings.ts'
import { withinOperations } from '../../store/limits/operations.ts'
import { claimNames, type NameSort, type UserName } from '../../store/limits/user-names.ts'
import type { Command } from '../../store/port.ts'
import type { UntaggedItem } from '../../store/submission/submission.ts'
import type { Deps } from '../deps.ts'

/** A node claims a name that is in use this often. The leader forgets names that nobody claimed for a day. */
const CLAIM_AGAIN_MS = 3_600_000
/** When a node knows this many names, it forgets all of them and asks the store again. */
const KNOWN_MAX = 100_000
const SETTINGS = {
  queue: 'queues_per_user_max',
  domain: 'domains_per_user_max',
  label: 'labels_per_user_max',
} as const satisfies Record<NameSort, SettingName>

interface Reached {
  setting: SettingName
  /** A sentence without its full stop: who has how many of what. */
  says(max: number): string
  /** The advice to the caller, beside asking for a higher maximum. */
  advice: string
  /** Set for rates and for things that end soon: the answer is 429, and clients retry by themselves. */
  retryAfterMs?: number
}

/** The refusal of a request that would exceed a maximum. It is counted by the name of the setting. */
export function maximumReached(
  { settings, meter }: Pick<Deps, 'settings' | 'meter'>,
  { setting, says, advice, retryAfterMs }: Reached,
): IchidoError {
  meter.maximumReached(setting)
  const max = settings.get(setting)
  const message = maximumText(setting, says(max), advice)
  const code = retryAfterMs === undefined ? 'MAXIMUM_REACHED' : 'RATE_LIMITED'
  return new IchidoError(code, message, { setting, max }, { retryAfterMs })
}

function maximumText(setting: SettingName, says: string, advice: string): string {
  return `${says}; ${advice}, or have an admin raise the setting ${setting}`
}

/** Adds an entry to a map. If the map is full, its oldest entry is dropped. */
export function setBounded<Key, Value>(map: Map<Key, Value>, max: number, key: Key, value: Value): void {
  const [oldest] = map.keys()
  if (map.size >= max && oldest !== undefined) map.delete(oldest)
  map.set(key, value)
}

/** Throws the refusal if the caller has the maximum of running operations and backfills. */
export async function beginWithinMaximum<T>(deps: Deps, id: string, { userId }: Caller, begin: Command<T>): Promise<T> {
  const setting = 'operations_per_user_max'
  const operation = { id, actor: userId, max: deps.settings.get(setting) }
  const begun = await deps.store.write(withinOperations(operation, begin))
  if (begun !== null) return begun
  throw maximumReached(deps, {
    setting,
    says: (max) => `${userId} has ${max} operations and backfills running, which is the maximum`,
    advice: 'wait until one has ended, abort one',
  })
}

/** Priority goes before fairness: without a maximum, one user could delay all others. */
export function priorityProblem(
  { settings }: Pick<Deps, 'settings'>,
  caller: Pick<Caller, 'userId' | 'role'>,
  priority = DEFAULT_PRIORITY,
): Problem<'INVALID_PAYLOAD'> | null {
  const setting = can(caller, 'operate') ? 'operator_priority_max' : 'submitter_priority_max'
  const max = settings.get(setting)
  if (priority <= max) return null
  const message = `priority must be at most ${max} for the role ${caller.role}; lower it, or have an admin raise the setting ${setting}`
  return invalid('priority', message)
}

/** The part of a job or definition that names something. */
type NamingItem = Pick<UntaggedItem, 'userId' | 'kind' | 'queue' | 'labels' | 'policy'>

interface NameRefusal {
  code: 'MAXIMUM_REACHED'
  message: string
  details: { setting: SettingName; max: number }
}

/**
 * Limits how many queues, domains and label names a user may use, because each takes memory on every node, and a domain
 * also takes streams in Redis. A new name is claimed in the store before its submission. A node remembers its claimed
 * names, so other submissions cost a few look-ups.
 */
export class UserNames {
  readonly #deps: Pick<Deps, 'world' | 'store' | 'settings'>
  /** By user, then by sort and name: until when the claim is valid. */
  readonly #known = new Map<string, Record<NameSort, Map<string, number>>>()
  #knownCount = 0
  #claiming: Promise<unknown> | null = null

  constructor(deps: Pick<Deps, 'world' | 'store' | 'settings'>) {
    this.#deps = deps
  }

  /** Whether all names are claimed already, and nobody waits for a claim: submissions keep their order. */
  knows(items: readonly NamingItem[]): boolean {
    if (this.#claiming !== null) return false
    const nowMs = this.#deps.world.monotonic()
    return items.every((item) => this.#knows(item, nowMs))
  }

  /** The refusal of each item that names too much, in the items' order. One claim is made after the other. */
  claim(items: readonly NamingItem[]): Promise<(NameRefusal | undefined)[]> {
    const claimed = this.#claimAfter(items, this.#claiming)
    this.#claiming = claimed
    const settled = () => {
      if (this.#claiming === claimed) this.#claiming = null
    }
    claimed.then(settled, settled)
    return claimed
  }

  async #claimAfter(items: readonly NamingItem[], before: Promise<unknown> | null) {
    await before?.catch(() => {})
    const nowMs = this.#deps.world.monotonic()
    if (items.every((item) => this.#knows(item, nowMs))) return []
    const max = (sort: NameSort) => this.#deps.settings.get(SETTINGS[sort])
    const namings = items.map((item) => (this.#knows(item, nowMs) ? [] : namesOf(item)))
    const command = claimNames(namings, { queue: max('queue'), domain: max('domain'), label: max('label') })
    const excess = await this.#deps.store.write(command)
    namings.forEach((naming, i) => {
      if (excess[i] === null) for (const name of naming) this.#remember(name, nowMs + CLAIM_AGAIN_MS)
    })
    return excess.map((name) => (name === null ? undefined : refusalOf(name, max(name.sort))))
  }

  #knows({ userId, kind, queue, labels, policy }: NamingItem, nowMs: number): boolean {
    const known = this.#known.get(userId)
    if (known === undefined) return false
    const isKnown = (sort: NameSort, name: string) => (known[sort].get(name) ?? 0) > nowMs
    if (!isKnown('queue', queue) || !isKnown('domain', policy.domain ?? kind)) return false
    return labels === null || Object.keys(labels).every((name) => isKnown('label', name))
  }

  #remember({ userId, sort, name }: UserName, untilMs: number): void {
    if (this.#knownCount++ >= KNOWN_MAX) {
      this.#known.clear()
      this.#knownCount = 1
    }
    const own = this.#known.get(userId) ?? { queue: new Map(), domain: new Map(), label: new Map() }
    own[sort].set(name, untilMs)
    this.#known.set(userId, own)
  }
}

function namesOf({ userId, kind, queue, labels, policy }: NamingItem): UserName[] {
  return [
    { userId, sort: 'queue', name: queue },
    { userId, sort: 'domain', name: policy.domain ?? kind },
    ...Object.keys(labels ?? {}).map((name): UserName => ({ userId, sort: 'label', name })),
  ]
}

function refusalOf({ sort, name }: UserName, max: number): NameRefusal {
  const setting = SETTINGS[sort]
  const says = `The ${sort} ${name} would exceed the maximum of ${max} that one user may name in a day`
  const message = maximumText(setting, says, `use a ${sort} that you have used before`)
  return { code: 'MAXIMUM_REACHED', message, details: { setting, max } }
}
