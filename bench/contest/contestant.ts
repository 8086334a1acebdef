import { fileURLToPath } from 'node:url'
import { z } from 'zod'

/** A job queue: Ichido in one of its forms, a peer, or the barest loop that writes our rows. */
export interface Contestant {
  /** Submits one job under the key of the unused number `n`. Peers have no users, and ignore `user`. */
  submit(n: number, user?: string): Promise<void>
  /** Submits `count` jobs in one call, with or without keys. */
  submitMany(first: number, count: number, keyed: boolean, user?: string): Promise<void>
  /** Works on all present and future jobs. Resolves when it works, with a function that stops it. */
  work(pace: Pace, handle: Handle): Promise<() => Promise<void>>
  close(): Promise<void>
}

/** A handler. `tell` publishes progress of the job; null if the contestant cannot do that. */
export type Handle = (n: number, tell: Tell | null) => void | Promise<void>
export type Tell = (step: number) => Promise<unknown>

/**
 * `bulk`: the settings that empty a full queue of empty jobs fastest. `wide`: the same with 100 handlers at a time. `prompt`: up
 * to 100 handlers, started as soon as possible. `narrow`: the same with 10 handlers.
 */
export const pace = z.enum(['bulk', 'wide', 'prompt', 'narrow'])
export type Pace = z.output<typeof pace>
export const HANDLERS: Record<Exclude<Pace, 'bulk'>, number> = { wide: 100, prompt: 100, narrow: 10 }

/** The settings of a contestant, as the child's only argument. */
export const settings = z.object({
  program: z.enum(['ichido', 'ichido-http', 'floor', 'pg-boss', 'bullmq', 'bee-queue', 'graphile-worker']),
  /** A database, a folder for SQLite (`file:`), a Redis with the name of a queue, or servers of Ichido (separated by commas). */
  url: z.string(),
  /** The folder of the peers' packages. */
  packages: z.string(),
})
export type Settings = z.output<typeof settings>

/** Submits for some time. */
export const round = z.object({
  callers: z.int(),
  durationMs: z.number(),
  /** Jobs in one call; 1 is a single submit. */
  batch: z.int(),
  /** A single submit always has a key. */
  keyed: z.boolean(),
})
export type Round = z.output<typeof round>

/** Submits this many jobs without keys, as fast as possible. */
const fill = z.object({ fill: z.int() })

/** Begins to work, and then reports the number of handled jobs until `rest`. */
const work = z.object({ work: pace, handlerMs: z.number() })
const rest = z.object({ rest: z.literal(true) })

/** Submits and handles at the same time, as many as possible. */
const saturate = z.object({ callers: z.int(), saturateMs: z.number() })

/** Submits at a steady rate, whether or not earlier jobs have begun, and measures each job. */
export const paced = z.object({
  calls: z.int(),
  everyMs: z.number(),
  pace,
  handlerMs: z.number(),
  /** Each handler publishes progress when it begins. */
  tells: z.boolean(),
  /** Jobs of one user that wait before the first call. The measured jobs then belong to many other users. */
  backlog: z.int(),
  /** Jobs that run all the time, so that heartbeats keep them alive. */
  long: z.int(),
})
export type Paced = z.output<typeof paced>

export const order = z.union([round, fill, work, rest, saturate, paced])
export type Order = z.output<typeof order>

const ms = z.array(z.number())
/** The durations of the calls, until the handlers began, and of the published progress. */
export const latencies = z.object({ submitsMs: ms, startsMs: ms, tellsMs: ms })
export type Latencies = z.output<typeof latencies>

/** The child's message: it is ready, it has done what was ordered, or the figures of a round. `handled` comes unasked. */
export const reply = z.union([
  z.object({ done: z.literal(true) }),
  z.object({ jobsPerSecond: z.number() }),
  latencies,
  z.object({ handled: z.int() }),
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

/** The number of a job that only tests whether keys work. Negative, so that it is not counted; another one in each process. */
export const probe = (): number => -1 - Math.floor(Math.random() * 1e9)

/** Redis has no databases with names. The part after # is the name of the queue. */
export const queueIn = (url: string): string => new URL(url).hash.slice(1)

/** A store by its address: a folder belongs to SQLite. */
export function storageOf(url: string): { dataDir: string } | { databaseUrl: string } {
  return url.startsWith('file:') ? { dataDir: fileURLToPath(url) } : { databaseUrl: url }
}
