import { z } from 'zod'

/** A job queue: Ichido in one of its forms, or a peer. Each runs in its own process. */
export interface Contestant {
  /** Submits one job under the key of the unused number `n`. */
  submit(n: number): Promise<void>
  /** Submits `count` jobs in one call, with or without keys. */
  submitMany(first: number, count: number, keyed: boolean): Promise<void>
  /** Works on all present and future jobs, and reports each start. Resolves when it works, with a function that stops it. */
  work(pace: Pace, begins: (n: number) => void): Promise<() => Promise<void>>
  close(): Promise<void>
}

/** `bulk`: the settings that empty a full queue fastest. `prompt`: those that start a single job soonest. */
export type Pace = 'bulk' | 'prompt'

/** The settings of a contestant, as the child's only argument. */
export const settings = z.object({
  name: z.enum(['ichido', 'ichido-http', 'floor', 'pg-boss', 'bullmq', 'graphile-worker']),
  /** A database, a Redis, or a server of Ichido. */
  url: z.string(),
  /** The folder of the peers' packages. */
  packages: z.string(),
})
export type Settings = z.output<typeof settings>

export const round = z.object({
  callers: z.int(),
  durationMs: z.number(),
  /** Jobs in one call; 1 is a single submit. */
  batch: z.int(),
  /** A single submit always has a key. */
  keyed: z.boolean(),
})
export type Round = z.output<typeof round>

/** Works off this many jobs, which were submitted before. */
export const drain = z.object({ jobs: z.int() })
export type Drain = z.output<typeof drain>

/** Submits this many jobs one by one, and measures each until its handler begins. */
export const starts = z.object({ calls: z.int(), everyMs: z.number() })
export type Starts = z.output<typeof starts>

export const order = z.union([round, drain, starts])
export type Order = z.output<typeof order>

/** The child's message: it is ready, or the jobs per second of a round, or the duration of each start. */
export const reply = z.union([
  z.object({ ready: z.literal(true) }),
  z.object({ jobsPerSecond: z.number() }),
  z.object({ startsMs: z.array(z.number()) }),
  z.object({ failed: z.string() }),
])
export type Reply = z.output<typeof reply>

/** All contestants use the same payload. */
export function payload(n: number): { to: string; template: string; n: number } {
  return { to: `user-${n}@example.org`, template: 'welcome', n }
}

/** The number of the job that a handler was given. */
export function numberIn(payload: unknown): number {
  if (typeof payload === 'object' && payload !== null && 'n' in payload && typeof payload.n === 'number')
    return payload.n
  throw new TypeError('This is not what was submitted')
}

export const keyOf = (n: number): string => `welcome-${n}`
