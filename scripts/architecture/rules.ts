const CORE = 'server/src/core/'
const PROTOCOL = 'sdk/src/protocol/'
const WORLD = 'sdk/src/world.ts'
const SERVICES = 'server/src/services/'

// What a use case may see of store and bus: their ports, the commands that run on any engine and the reading of a row.
// Engines, SQL and migrations stay behind them.
const PORTS = [
  'server/src/store/port.ts',
  'server/src/store/statement.ts',
  'server/src/store/commands/',
  'server/src/bus/port.ts',
  'server/src/blobs/port.ts',
  'server/src/log-archive/port.ts',
]

// Where adapters are put together: a node, the library over it, the server around it, and work on a store without one.
const FRONTS = ['main', 'open', 'server', 'maintenance'].map((name) => `server/src/${name}.ts`)

export type Room = { files: string; mayImport: string[] }

/** Who may import whom (design, "Tree and direction"). The first room that a file's path begins with is its own. */
export const ROOMS: Room[] = [
  { files: CORE, mayImport: [CORE, PROTOCOL] },
  { files: 'server/src/store/', mayImport: ['server/src/store/', CORE, PROTOCOL, WORLD] },
  { files: 'server/src/bus/', mayImport: ['server/src/bus/', CORE, PROTOCOL, WORLD] },
  { files: 'server/src/blobs/', mayImport: ['server/src/blobs/', CORE, PROTOCOL, WORLD] },
  // Both keep files in the same folder, with the same modes.
  {
    files: 'server/src/log-archive/',
    mayImport: ['server/src/log-archive/', 'server/src/blobs/modes.ts', CORE, PROTOCOL, WORLD],
  },
  { files: SERVICES, mayImport: [SERVICES, CORE, ...PORTS, PROTOCOL, WORLD] },
  { files: 'server/src/leader/', mayImport: ['server/src/leader/', SERVICES, CORE, ...PORTS, PROTOCOL, WORLD] },
  { files: 'server/src/http/', mayImport: ['server/src/http/', SERVICES, CORE, ...PORTS, PROTOCOL, WORLD] },
  {
    files: 'server/src/cli/',
    mayImport: ['server/src/cli/', CORE, 'sdk/src/', ...FRONTS, 'server/src/config.ts', 'server/src/world.ts'],
  },
  // For applications that run no control plane: nothing of one comes along.
  { files: 'server/src/idempotency/', mayImport: ['server/src/idempotency/', CORE, PROTOCOL, WORLD] },
  { files: 'server/src/world.ts', mayImport: [WORLD] },
  { files: 'server/src/config.ts', mayImport: [CORE, PROTOCOL] },
  // The fronts choose the adapters: they see everything.
  { files: 'server/src/', mayImport: ['server/src/', 'sdk/src/'] },
  { files: PROTOCOL, mayImport: [PROTOCOL] },
  { files: WORLD, mayImport: [] },
  { files: 'sdk/src/', mayImport: ['sdk/src/'] },
]

/** Not part of the product; nothing of the product may import it. */
export const isTest = (path: string): boolean =>
  /\.test\.ts$|\/testing\/|\/conformance(\/|\.ts$)|\/fixtures\//.test(path)

/** No I/O, no clock, no randomness, no await. */
export const PURE = CORE

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
export const WORLDS = [WORLD, 'server/src/world.ts', 'sdk/src/worker/agent/world.ts']

export const WORLD_GLOBALS = ['setTimeout', 'setInterval', 'randomUUID']
export const WORLD_MEMBERS = ['Date.now', 'Math.random', 'performance.now', 'AbortSignal.timeout', 'crypto.randomUUID']
export const WORLD_MODULES = ['node:timers', 'node:timers/promises', 'node:perf_hooks']
