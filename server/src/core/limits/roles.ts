/** Who may do what. A viewer sees everything and changes nothing; a submitter sees and touches only its own. */
export const ROLES = ['viewer', 'submitter', 'operator', 'admin'] as const
export type Role = (typeof ROLES)[number]

const ABILITIES = {
  /** Jobs, keys, reservations of any user. */
  readAll: ['viewer', 'operator', 'admin'],
  /** One's own jobs, keys, reservations and quota. */
  readOwn: ['viewer', 'submitter', 'operator', 'admin'],
  submit: ['submitter', 'operator', 'admin'],
  /** Cancel or extend what belongs to another user. */
  operate: ['operator', 'admin'],
  /** Quotas, users, tokens, settings. */
  administer: ['admin'],
} as const satisfies Record<string, readonly Role[]>

export type Ability = keyof typeof ABILITIES

export interface Caller {
  userId: string
  role: Role
  /** Of the API token that says so; callers without one are this process itself, open mode, and stream tokens. */
  tokenId?: string
}

export function can(caller: Caller, ability: Ability): boolean {
  return (ABILITIES[ability] as readonly Role[]).includes(caller.role)
}

/** Whether a caller sees what belongs to this user. */
export function mayRead(caller: Caller, userId: string): boolean {
  return caller.userId === userId || can(caller, 'readAll')
}

/** Whether a caller may change what belongs to this user. */
export function mayChange(caller: Caller, userId: string): boolean {
  return caller.userId === userId || can(caller, 'operate')
}

/** The user that a caller's lists are limited to; null when it may see all. */
export function visibleUser(caller: Caller): string | null {
  return can(caller, 'readAll') ? null : caller.userId
}
