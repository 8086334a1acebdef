import { writeSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import pg from 'pg'
import { DEFAULT_LEASE_TTL_MS } from '../core/run/job.ts'
import { postgresText } from '../store/engines/postgres/migrate.ts'
import { CONNECT_TIMEOUT_MS, Servers } from '../store/engines/postgres/servers.ts'
import { heartbeatWorkers } from '../store/leasing/heartbeat-runs.ts'

/** How to reach the database: an address, or what a pool was made with. */
export type SpareConnection = { url: string } | { options: pg.ClientConfig }

/** What the thread is started with. */
export interface SpareHeartData {
  connection: SpareConnection
  schema: string
  workerIds: string[]
  /** Counted up by the thread of the handlers, for as long as it does anything else than run one of them. */
  pulse: SharedArrayBuffer
  /** How often. */
  pulseMs: number
  /** How long in µs this thread has stood in, as far as it was heard. */
  covered: SharedArrayBuffer
}

/** What it is told, and what it tells. */
export type SpareOrder = { workerId: string } | { connection: SpareConnection }
export type SpareNotice = { blockedMs: number } | { lost: string }

const LOOK_MS = 250
/** So long without a pulse; then there is a heartbeat at each look. */
const BLOCKED_MS = 750
const QUERY_TIMEOUT_MS = 5_000

/** The same clock in every thread. */
const nowMs = () => Number(process.hrtime.bigint() / 1000n) / 1000

const data = workerData as SpareHeartData
const pulse = new Int32Array(data.pulse)
const covered = new BigInt64Array(data.covered)
const text = postgresText(heartbeatWorkers.postgres, data.schema)
const tell = (notice: SpareNotice) => parentPort?.postMessage(notice)

let { connection } = data
let client: Promise<pg.Client> | null = null
let last = { count: -1, atMs: nowMs() }
let heardMs: number | null = null
let isBusy = false
let isSaid = false

parentPort?.on('message', (order: SpareOrder) => {
  if ('workerId' in order) data.workerIds.push(order.workerId)
  else connection = order.connection
})
// When it is needed, the other thread cannot help with a password.
connected().catch(() => {})
setInterval(look, LOOK_MS)

function look(): void {
  const now = nowMs()
  const count = Atomics.load(pulse, 0)
  if (count !== last.count) {
    if (now - last.atMs > BLOCKED_MS + LOOK_MS && last.count >= 0) tell({ blockedMs: now - last.atMs })
    last = { count, atMs: now }
    heardMs = null
    isSaid = false
  } else if (!isBusy && now - last.atMs >= BLOCKED_MS) {
    isBusy = true
    void beat(now).finally(() => {
      isBusy = false
    })
  }
}

async function beat(sentMs: number): Promise<void> {
  const { atMs } = last
  // From when the next pulse was due: by then the other thread was held up, and had heard nothing later.
  const fromMs = heardMs ?? atMs + data.pulseMs
  try {
    const query = { text, values: [data.workerIds, DEFAULT_LEASE_TTL_MS], query_timeout: QUERY_TIMEOUT_MS }
    await (await connected()).query(query)
    Atomics.add(covered, 0, BigInt(Math.round((sentMs - fromMs) * 1000)))
    // Unless the other thread is back since.
    if (last.atMs === atMs) heardMs = sentMs
  } catch (error) {
    leave()
    if (isSaid) return
    isSaid = true
    // By nobody else's help: the other thread would say it when it is too late.
    writeSync(2, `ichido: ${WARNING} (${error instanceof Error ? error.message : String(error)})\n`)
  }
}

/** The next one needs a new connection. One whose query took too long is still open. */
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
