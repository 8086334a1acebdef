import { z } from 'zod'

/** Whoever takes submissions and works them off: Ichido in one of its forms, or a peer. Each runs in a process of its own. */
export interface Contestant {
  /** One submission under the key that `n` stands for; `n` was not used before. */
  submit(n: number): Promise<void>
  /** As many in one call, with or without their keys. */
  submitMany(first: number, count: number, keyed: boolean): Promise<void>
  /** Works on all jobs there are and come, and says which begins; settles, at work, with what ends it. */
  work(pace: Pace, begins: (n: number) => void): Promise<() => Promise<void>>
  close(): Promise<void>
}

/** `bulk`: the settings that work off a full queue fastest; `prompt`: those that start a lone job soonest. */
export type Pace = 'bulk' | 'prompt'

/** What a contestant needs to be started; it is the child's one argument. */
export const settings = z.object({
  name: z.enum(['ichido', 'ichido-http', 'floor', 'pg-boss', 'bullmq', 'graphile-worker']),
  /** A database, a Redis or a server of Ichido's. */
  url: z.string(),
  /** Where the peers' packages are. */
  packages: z.string(),
})
export type Settings = z.output<typeof settings>

export const round = z.object({
  callers: z.int(),
  durationMs: z.number(),
  /** Jobs in one call; 1 is a plain submit. */
  batch: z.int(),
  /** A plain submit always has a key. */
  keyed: z.boolean(),
})
export type Round = z.output<typeof round>

/** So many jobs, put there beforehand, are worked off. */
export const drain = z.object({ jobs: z.int() })
export type Drain = z.output<typeof drain>

/** So many jobs come one by one, and each is waited for until its handler begins. */
export const starts = z.object({ calls: z.int(), everyMs: z.number() })
export type Starts = z.output<typeof starts>

export const order = z.union([round, drain, starts])
export type Order = z.output<typeof order>

/** What the child says: that it is ready, how many jobs a second a round brought, or how long each start took. */
export const reply = z.union([
  z.object({ ready: z.literal(true) }),
  z.object({ jobsPerSecond: z.number() }),
  z.object({ startsMs: z.array(z.number()) }),
  z.object({ failed: z.string() }),
])
export type Reply = z.output<typeof reply>

/** The same for everybody. */
export function payload(n: number): { to: string; template: string; n: number } {
  return { to: `user-${n}@example.org`, template: 'welcome', n }
}

/** Which job a handler was given. */
export function numberIn(payload: unknown): number {
  if (typeof payload === 'object' && payload !== null && 'n' in payload && typeof payload.n === 'number')
    return payload.n
  throw new TypeError('This is not what was submitted')
}

export const keyOf = (n: number): string => `welcome-${n}`
