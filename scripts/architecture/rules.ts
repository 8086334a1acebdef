const CORE = 'server/src/core/'
const CONTRACT = 'server/src/contract/'
const STORE = 'server/src/store/'
const SERVICES = 'server/src/services/'
const NODE = 'server/src/node/'
const PROTOCOL = 'sdk/src/protocol/'
const WORLD = 'sdk/src/world.ts'

/** The rooms of the store and of the services: one for each subject, under the same name. */
const SUBJECTS = [
  'submission',
  'leasing',
  'runs',
  'jobs',
  'events',
  'schedules',
  'triggers',
  'dead-letters',
  'artifacts',
  'logs',
  'workers',
  'limits',
  'access',
  'system',
]

// What a use case may see of store and bus: their ports, and the commands that run on any engine. Engines, SQL and
// migrations stay behind them.
const PORTS = [
  `${STORE}port.ts`,
  `${STORE}statement.ts`,
  ...SUBJECTS.map((subject) => `${STORE}${subject}/`),
  'server/src/bus/port.ts',
  'server/src/blobs/port.ts',
  'server/src/log-archive/port.ts',
]

export type Room = { files: string; mayImport: string[] }

/** Which room may import which. The first room that a file's path begins with is its own. */
export const ROOMS: Room[] = [
  { files: CORE, mayImport: [CORE, PROTOCOL] },
  { files: CONTRACT, mayImport: [CONTRACT, CORE, PROTOCOL] },
  { files: STORE, mayImport: [STORE, CONTRACT, CORE, PROTOCOL, WORLD] },
  { files: 'server/src/bus/', mayImport: ['server/src/bus/', CONTRACT, CORE, PROTOCOL, WORLD] },
  { files: 'server/src/blobs/', mayImport: ['server/src/blobs/', CORE, PROTOCOL, WORLD] },
  // Both keep files in the same folder, with the same modes.
  {
    files: 'server/src/log-archive/',
    mayImport: ['server/src/log-archive/', 'server/src/blobs/modes.ts', CORE, PROTOCOL, WORLD],
  },
  { files: SERVICES, mayImport: [SERVICES, CONTRACT, CORE, ...PORTS, PROTOCOL, WORLD] },
  {
    files: 'server/src/leader/',
    mayImport: ['server/src/leader/', SERVICES, CONTRACT, CORE, ...PORTS, PROTOCOL, WORLD],
  },
  { files: 'server/src/http/', mayImport: ['server/src/http/', SERVICES, CONTRACT, CORE, ...PORTS, PROTOCOL, WORLD] },
  { files: 'server/src/cli/', mayImport: ['server/src/cli/', NODE, 'server/src/library/', CONTRACT, CORE, 'sdk/src/'] },
  // For applications that run no control plane: nothing of one comes along.
  { files: 'server/src/idempotency/', mayImport: ['server/src/idempotency/', CORE, PROTOCOL, WORLD] },
  { files: `${NODE}world.ts`, mayImport: [WORLD] },
  { files: `${NODE}config.ts`, mayImport: [CORE, PROTOCOL] },
  // A node and the library choose the adapters: they see everything.
  { files: 'server/src/', mayImport: ['server/src/', 'sdk/src/'] },
  { files: PROTOCOL, mayImport: [PROTOCOL] },
  { files: WORLD, mayImport: [] },
  { files: 'sdk/src/', mayImport: ['sdk/src/'] },
]

/** SQL stays in the store, beside the commands that run it. */
export const isSql = (path: string): boolean => path.endsWith('.sql.ts')
export const STORE_ROOM = STORE

/** More files than a reader takes in at a glance. */
export const FILES_PER_FOLDER_MAX = 20

/** Not part of the product; nothing of the product may import it. */
export const isTest = (path: string): boolean =>
  /\.test\.ts$|\/testing\/|\/conformance(\/|\.ts$)|\/fixtures\//.test(path)

/** No I/O, no clock, no randomness, no await. */
export const PURE = [CORE, CONTRACT]

/** From outside the repository, all that the pure room may use. */
export const PURE_MAY_USE: Record<string, string[] | 'all'> = {
  zod: 'all',
  croner: 'all',
  'node:crypto': ['createHash', 'createHmac', 'hash', 'timingSafeEqual'],
}

export const IMPURE_GLOBALS = ['process', 'console', 'fetch', 'crypto', 'performance', 'setImmediate', 'queueMicrotask']

/** Clock, timers and chance are injected in these rooms … */
export const INJECTED = [
  CORE,
  CONTRACT,
  SERVICES,
  'server/src/leader/',
  'server/src/store/',
  'server/src/bus/',
  'server/src/blobs/',
  'server/src/log-archive/',
  'server/src/idempotency/',
  'sdk/src/',
]

/** … and these files are what gets injected. */
export const WORLDS = [WORLD, 'server/src/node/world.ts', 'sdk/src/worker/agent/world.ts']

export const WORLD_GLOBALS = ['setTimeout', 'setInterval', 'randomUUID']
export const WORLD_MEMBERS = ['Date.now', 'Math.random', 'performance.now', 'AbortSignal.timeout', 'crypto.randomUUID']
export const WORLD_MODULES = ['node:timers', 'node:timers/promises', 'node:perf_hooks']
