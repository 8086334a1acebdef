import { z } from 'zod'

/** Whoever takes submissions: Ichido in one of its forms, or a peer. Each runs in a process of its own. */
export interface Contestant {
  /** One submission under the key that `n` stands for; `n` was not used before. */
  submit(n: number): Promise<void>
  /** As many in one call, with or without their keys. */
  submitMany(first: number, count: number, keyed: boolean): Promise<void>
  close(): Promise<void>
}

/** What a contestant needs to be started; it is the child's one argument. */
export const settings = z.object({
  name: z.enum(['ichido', 'ichido-http', 'pg-boss', 'bullmq', 'graphile-worker']),
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

/** What the child says: that it is ready, or how many jobs a second a round brought. */
export const reply = z.union([
  z.object({ ready: z.literal(true) }),
  z.object({ jobsPerSecond: z.number() }),
  z.object({ failed: z.string() }),
])
export type Reply = z.output<typeof reply>

/** The same for everybody. */
export function payload(n: number): { to: string; template: string; n: number } {
  return { to: `user-${n}@example.org`, template: 'welcome', n }
}

export const keyOf = (n: number): string => `welcome-${n}`
