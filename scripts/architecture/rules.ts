import { ENTRIES } from '../bundle-library.mjs'

const CORE = 'server/src/core/'
const CONTRACT = 'server/src/contract/'
const STORE = 'server/src/store/'
const SERVICES = 'server/src/services/'
const NODE = 'server/src/node/'
const PROTOCOL = 'sdk/src/protocol/'
const WORLD = 'sdk/src/world.ts'

export type Room = { files: string; mayImport: string[] }

/**
 * The rooms of the store and of the services: one for each subject, under the same name. A service may use the store's room
 * of its subject, and these neighbours: their services and their rooms of the store.
 */
const NEIGHBOURS = {
  submission: ['leasing', 'limits'],
  leasing: ['limits'],
  runs: ['jobs', 'leasing'],
  jobs: ['leasing', 'runs', 'system', 'workers'],
  events: ['access', 'runs', 'system'],
  schedules: ['limits', 'submission', 'system'],
  triggers: ['schedules'],
  'dead-letters': ['artifacts', 'jobs', 'leasing', 'limits', 'submission'],
  artifacts: ['jobs', 'runs'],
  logs: ['runs'],
  workers: ['access', 'leasing'],
  limits: ['submission'],
  access: ['jobs'],
  system: ['submission'],
} as const

type Subject = keyof typeof NEIGHBOURS

const SUBJECTS = Object.keys(NEIGHBOURS) as Subject[]
const STORE_ROOMS = SUBJECTS.map((subject) => `${STORE}${subject}/`)

// What a use case sees of the adapters.
const PORTS = [
  `${STORE}port.ts`,
  `${STORE}statement.ts`,
  'server/src/bus/port.ts',
  'server/src/blobs/port.ts',
  'server/src/log-archive/port.ts',
]

/** What stands in no room of the services is for all of them. */
const SHARED_SERVICES = [...['answers', 'deps', 'wait'].map((name) => `${SERVICES}${name}.ts`), `${SERVICES}batching/`]

const serviceRooms = SUBJECTS.map((subject): Room => {
  const rooms = [subject, ...NEIGHBOURS[subject]].flatMap((room) => [`${SERVICES}${room}/`, `${STORE}${room}/`])
  const shared = [...SHARED_SERVICES, CONTRACT, CORE, ...PORTS, PROTOCOL, WORLD]
  return { files: `${SERVICES}${subject}/`, mayImport: [...rooms, ...shared] }
})

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
  ...serviceRooms,
  { files: `${SERVICES}batching/`, mayImport: [`${SERVICES}batching/`, CORE, ...PORTS, WORLD] },
  { files: SERVICES, mayImport: [SERVICES, CONTRACT, CORE, ...PORTS, PROTOCOL, WORLD] },
  {
    files: 'server/src/leader/',
    mayImport: ['server/src/leader/', SERVICES, CONTRACT, CORE, ...STORE_ROOMS, ...PORTS, PROTOCOL, WORLD],
  },
  // Routes parse, call a service and render: nothing of the store reaches them.
  { files: 'server/src/http/', mayImport: ['server/src/http/', SERVICES, CONTRACT, CORE, PROTOCOL, WORLD] },
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

/** Where the package `ichido` begins: its entries, and the threads that they start. */
export const LIBRARY = ENTRIES.map((name) => `server/src/${name}.ts`)

/** Published with `@ichido/server` only. */
export const SERVER_ONLY = ['server/src/http/', 'server/src/cli/', 'server/src/bus/redis/', 'server/src/node/server.ts']

/** Of the packages of others: what its manifest and the SDK's name, and what is bundled into it. */
export const LIBRARY_MAY_USE = ['pg', 'zod', 'croner', 'uuid', 'eventsource-parser', 'idb']

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
