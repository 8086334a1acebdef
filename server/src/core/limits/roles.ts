/** The roles of callers. A viewer sees everything and changes nothing. A submitter sees and changes only its own. */
export const ROLES = ['viewer', 'submitter', 'operator', 'admin'] as const
export type Role = (typeof ROLES)[number]

const ABILITIES = {
  /** Jobs, keys, reservations of any user. */
  readAll: ['viewer', 'operator', 'admin'],
  /** The caller's own jobs, keys, reservations and quota. */
  readOwn: ['viewer', 'submitter', 'operator', 'admin'],
  submit: ['submitter', 'operator', 'admin'],
  /** Cancel or extend what belongs to another user. */
  operate: ['operator', 'admin'],
  /** Quotas, users, tokens, settings. */
  administer: ['admin'],
} as const satisfies Record<string, readonly Role[]>

export type Ability = keyof typeof ABILITIES

export const ABILITY_NAMES = Object.keys(ABILITIES) as Ability[]

export interface Caller {
  userId: string
  role: Role
  /** The caller's API token. This process itself, open mode and stream tokens have none. */
  tokenId?: string
}

export function can(caller: Caller, ability: Ability): boolean {
  return (ABILITIES[ability] as readonly Role[]).includes(caller.role)
}

export function abilitiesOf(caller: Caller): Ability[] {
  return ABILITY_NAMES.filter((ability) => can(caller, ability))
}

/** True if the caller may see this user's data. */
export function mayRead(caller: Caller, userId: string): boolean {
  return caller.userId === userId || can(caller, 'readAll')
}

/** True if the caller may change this user's data. */
export function mayChange(caller: Caller, userId: string): boolean {
  return caller.userId === userId || can(caller, 'operate')
}

/** The user that the caller's lists are limited to; null if the caller may see all. */
export function visibleUser(caller: Caller): string | null {
  return can(caller, 'readAll') ? null : caller.userId
}
