import { writeSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import pg from 'pg'
import { CONNECT_TIMEOUT_MS, Servers } from '../store/engines/postgres/servers.ts'

/** The address of the database, or the options of a pool. */
export type SpareConnection = { url: string } | { options: pg.ClientConfig }

export interface SpareHeartData {
  connection: SpareConnection
  /** The statement, as text: to load the code that makes it took most of the time and memory of this thread. */
  heartbeat: string
  workerIds: string[]
  /** The handlers' thread increments it while its event loop runs. */
  pulse: SharedArrayBuffer
  pulseMs: number
  /** The time in µs that this thread's heartbeats covered. */
  covered: SharedArrayBuffer
}

/** Messages to the thread, and from it. */
export type SpareOrder = { workerId: string } | { connection: SpareConnection }
export type SpareNotice = { blockedMs: number } | { lost: string }

const LOOK_MS = 250
/** Without a pulse for this long, each look sends a heartbeat. */
const BLOCKED_MS = 750
const QUERY_TIMEOUT_MS = 5_000

/** This clock is the same in every thread. */
const nowMs = () => Number(process.hrtime.bigint() / 1000n) / 1000

const data = workerData as SpareHeartData
const pulse = new Int32Array(data.pulse)
const covered = new BigInt64Array(data.covered)
const tell = (notice: SpareNotice) => parentPort?.postMessage(notice)

let { connection } = data
let client: Promise<pg.Client> | null = null
let last = { count: -1, atMs: nowMs() }
let heardMs: number | null = null
let isBusy = false
let isWarned = false

parentPort?.on('message', (order: SpareOrder) => {
  if ('workerId' in order) data.workerIds.push(order.workerId)
  else connection = order.connection
})
// Connects early, because a blocked handlers' thread cannot provide a password.
connected().catch(() => {})
setInterval(look, LOOK_MS)

function look(): void {
  const now = nowMs()
  const count = Atomics.load(pulse, 0)
  if (count !== last.count) {
    if (now - last.atMs > BLOCKED_MS + LOOK_MS && last.count >= 0) tell({ blockedMs: now - last.atMs })
    last = { count, atMs: now }
    heardMs = null
    isWarned = false
  } else if (!isBusy && now - last.atMs >= BLOCKED_MS) {
    isBusy = true
    void beat(now).finally(() => {
      isBusy = false
    })
  }
}

async function beat(sentMs: number): Promise<void> {
  const { atMs } = last
  // Counts from the missed pulse, when the handlers' thread was blocked.
  const fromMs = heardMs ?? atMs + data.pulseMs
  try {
    const query = { text: data.heartbeat, values: [data.workerIds], query_timeout: QUERY_TIMEOUT_MS }
    await (await connected()).query(query)
    Atomics.add(covered, 0, BigInt(Math.round((sentMs - fromMs) * 1000)))
    // Unless the handlers' thread has continued since.
    if (last.atMs === atMs) heardMs = sentMs
  } catch (error) {
    leave()
    if (isWarned) return
    isWarned = true
    // Written directly, because the handlers' thread would print it too late.
    writeSync(2, `ichido: ${WARNING} (${error instanceof Error ? error.message : String(error)})\n`)
  }
}

/** Closes the connection, which may still be open after a timeout. */
function leave(): void {
  client?.then((made) => made.end()).catch(() => {})
  client = null
}

const WARNING =
  'a handler blocks the event loop and the database cannot be reached: another worker may get its job while it runs'

function connected(): Promise<pg.Client> {
  client ??= connect()
  return client
}

async function connect(): Promise<pg.Client> {
  const made = await ('url' in connection ? new Servers(connection.url).connect() : connectBy(connection.options))
  made.on('error', (error) => {
    client = null
    tell({ lost: error.message })
  })
  return made
}

async function connectBy(options: pg.ClientConfig): Promise<pg.Client> {
  const made = new pg.Client({ ...options, connectionTimeoutMillis: CONNECT_TIMEOUT_MS })
  made.on('error', () => {})
  await made.connect()
  return made
}
