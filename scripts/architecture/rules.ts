import { ENTRIES } from '../bundle.mjs'

const CORE = 'server/src/core/'
const CONTRACT = 'server/src/contract/'
const STORE = 'server/src/store/'
const SERVICES = 'server/src/services/'
const NODE = 'server/src/node/'
const PROTOCOL = 'sdk/src/protocol/'
const WORLD = 'sdk/src/world.ts'

export type Room = { files: string; mayImport: string[] }

/**
 * The store and the services have the same rooms, one for each subject. A service may use the store room of its
 * subject, and the services and store rooms of these neighbours.
 */
const NEIGHBOURS = {
  submission: ['leasing', 'limits'],
  leasing: ['limits'],
  runs: ['jobs', 'leasing'],
  jobs: ['leasing', 'runs', 'system', 'webhooks', 'workers'],
  events: ['access', 'runs', 'system'],
  schedules: ['limits', 'submission', 'system'],
  triggers: ['schedules'],
  'dead-letters': ['artifacts', 'jobs', 'leasing', 'submission'],
  operations: ['dead-letters', 'jobs', 'limits'],
  webhooks: [],
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

// A service sees only these ports of the adapters. Rows and statements stay inside the store.
const PORTS = [
  `${STORE}port.ts`,
  'server/src/bus/port.ts',
  'server/src/blobs/port.ts',
  'server/src/log-archive/port.ts',
  'server/src/courier/port.ts',
]

/** Files outside the rooms of the services are shared by all of them. */
const SHARED_SERVICES = [...['answers', 'deps', 'wait'].map((name) => `${SERVICES}${name}.ts`), `${SERVICES}batching/`]

const serviceRooms = SUBJECTS.map((subject): Room => {
  const rooms = [subject, ...NEIGHBOURS[subject]].flatMap((room) => [`${SERVICES}${room}/`, `${STORE}${room}/`])
  const shared = [...SHARED_SERVICES, CONTRACT, CORE, ...PORTS, PROTOCOL, WORLD]
  return { files: `${SERVICES}${subject}/`, mayImport: [...rooms, ...shared] }
})

/** The imports that each room may use. A file belongs to the first room whose path its own path begins with. */
export const ROOMS: Room[] = [
  { files: CORE, mayImport: [CORE, PROTOCOL] },
  { files: CONTRACT, mayImport: [CONTRACT, CORE, PROTOCOL] },
  { files: STORE, mayImport: [STORE, CONTRACT, CORE, PROTOCOL, WORLD] },
  { files: 'server/src/bus/', mayImport: ['server/src/bus/', CONTRACT, CORE, PROTOCOL, WORLD] },
  { files: 'server/src/blobs/', mayImport: ['server/src/blobs/', CORE, PROTOCOL, WORLD] },
  { files: 'server/src/courier/', mayImport: ['server/src/courier/'] },
  // The log archive and the blobs keep files in the same folder, with the same modes.
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
  // Routes parse, call a service and render. They never see the store.
  { files: 'server/src/http/', mayImport: ['server/src/http/', SERVICES, CONTRACT, CORE, PROTOCOL, WORLD] },
  { files: 'server/src/cli/', mayImport: ['server/src/cli/', NODE, 'server/src/library/', CONTRACT, CORE, 'sdk/src/'] },
  // This room is for applications without a control plane, so it includes nothing of one.
  { files: 'server/src/idempotency/', mayImport: ['server/src/idempotency/', CORE, PROTOCOL, WORLD] },
  { files: `${NODE}world.ts`, mayImport: [WORLD, CORE] },
  { files: `${NODE}config.ts`, mayImport: [CORE, PROTOCOL] },
  // A node and the library choose the adapters, so they may import everything.
  { files: 'server/src/', mayImport: ['server/src/', 'sdk/src/'] },
  { files: PROTOCOL, mayImport: [PROTOCOL] },
  { files: WORLD, mayImport: [] },
  { files: 'sdk/src/', mayImport: ['sdk/src/'] },
]

/** SQL stays in the store, beside the commands that run it. */
export const isSql = (path: string): boolean => path.endsWith('.sql.ts')
export const STORE_ROOM = STORE

/** A reader cannot take in more files at a glance. */
export const FILES_PER_FOLDER_MAX = 20

/** Test code, which the product may not import. */
export const isTest = (path: string): boolean =>
  /\.test\.ts$|\/testing\/|\/conformance(\/|\.ts$)|\/fixtures\//.test(path)

/** The entries of the package `ichido`, and the threads that they start. */
export const LIBRARY = ENTRIES.map((name) => `server/src/${name}.ts`)

/** Published with `@ichido/server` only. */
export const SERVER_ONLY = [
  'server/src/http/',
  'server/src/cli/',
  'server/src/bus/redis/',
  'server/src/node/start-server.ts',
]

/** The external packages in the manifests of the library and the SDK, and those in the library's bundle. */
export const LIBRARY_MAY_USE = ['pg', 'zod', 'croner', 'uuid', 'eventsource-parser', 'idb']

/** Rooms without I/O, clock, randomness and await. */
export const PURE = [CORE, CONTRACT]

/** The pure rooms may use only these external modules. */
export const PURE_MAY_USE: Record<string, string[] | 'all'> = {
  zod: 'all',
  croner: 'all',
  'node:crypto': ['createHash', 'createHmac', 'hash', 'timingSafeEqual'],
}

export const IMPURE_GLOBALS = ['process', 'console', 'fetch', 'crypto', 'performance', 'setImmediate', 'queueMicrotask']

/** Clock, timers and randomness are injected in these rooms. */
export const INJECTED = [
  CORE,
  CONTRACT,
  SERVICES,
  'server/src/leader/',
  'server/src/store/',
  'server/src/bus/',
  'server/src/blobs/',
  'server/src/log-archive/',
  'server/src/courier/',
  'server/src/idempotency/',
  'sdk/src/',
]

/** These files define the clock, timers and randomness that are injected. */
export const WORLDS = [WORLD, 'server/src/node/world.ts', 'sdk/src/worker/agent/world.ts']

export const WORLD_GLOBALS = ['setTimeout', 'setInterval', 'randomUUID']
export const WORLD_MEMBERS = ['Date.now', 'Math.random', 'performance.now', 'AbortSignal.timeout', 'crypto.randomUUID']
export const WORLD_MODULES = ['node:timers', 'node:timers/promises', 'node:perf_hooks']
