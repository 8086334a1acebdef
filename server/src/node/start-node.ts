import { X509Certificate } from 'node:crypto'
import { sleep, type World } from '@ichido/sdk/world'
import pg from 'pg'
import { EmbeddedBus } from '../bus/embedded.ts'
import type { Bus } from '../bus/port.ts'
import { channelOf, PostgresBus, type PostgresBusOptions } from '../bus/postgres.ts'
import type { ForeignEvent } from '../core/events/event.ts'
import type { FixedSettings } from '../core/limits/settings.ts'
import { ALL_NODE_ROLES, type NodeRole } from '../core/node/node.ts'
import { LOCAL_WORKER_PREFIX } from '../core/run/job.ts'
import { openCourier } from '../courier/http-courier.ts'
import type { AlertChange } from '../leader/duties/alert.ts'
import { ClockWatch } from '../leader/election/clock-watch.ts'
import { leaderDuties, nodeDuties } from '../leader/election/duties.ts'
import { type Duty, Election, type LeadershipChange, type Leading } from '../leader/election/elect.ts'
import { Loop } from '../leader/election/loop.ts'
import type { SubmitIn } from '../library/local-transport.ts'
import { DEFAULT_LIMITS } from '../services/deps.ts'
import { createServices, type Services } from '../services/index.ts'
import type { FullTime } from '../services/system/alerts.ts'
import type { Meter } from '../services/system/meter.ts'
import { isConnectionLoss } from '../store/engines/postgres/errors.ts'
import { openPostgres, type PgClient, type PostgresStore, unreachable } from '../store/engines/postgres/postgres.ts'
import { inspect, Servers } from '../store/engines/postgres/servers.ts'
import { READING_SESSION } from '../store/engines/postgres/settings.ts'
import { openSqlite } from '../store/engines/sqlite/sqlite.ts'
import { adoptRestoredEvents, beginWatermark } from '../store/events/relay.ts'
import type { Store } from '../store/port.ts'
import { takeOverFolder } from '../store/runs/reap-runs.ts'
import { beginEnds } from '../store/webhooks/derive-deliveries.ts'
import { type ArtifactOptions, disksOf, openBackups, openFiles } from './folders.ts'
import type { Redis } from './redis-port.ts'

export type { AlertChange } from '../leader/duties/alert.ts'
export type { LeadershipChange } from '../leader/election/elect.ts'

/** Where jobs are kept. */
export type Storage =
  | { dataDir: string }
  | ({ databaseUrl: string } & DatabaseOptions)
  | ({ pool: pg.Pool } & DatabaseOptions)

interface DatabaseOptions {
  schema?: string | undefined
  /** The address for wake-ups if the other address leads to a connection pooler. */
  databaseDirectUrl?: string | undefined
}

interface NodeOptions {
  storage: Storage
  world: World
  meter: Meter
  allowNoFsync: boolean
  artifacts?: ArtifactOptions | undefined
  /** The TLS certificate of this node, in PEM. */
  certificate?: string | undefined
  /** Events are also sent over this Redis. */
  redis?: Redis | null | undefined
  /** Default: all roles. */
  roles?: ReadonlySet<NodeRole> | undefined
  /** Settings of the environment, which override stored values. */
  fixed?: FixedSettings | undefined
  /** Called for errors outside of any call: a loop that failed, or a lost wake-up connection. */
  onTrouble(where: string, error: unknown): void
  onLeadership?: ((change: LeadershipChange) => void) | undefined
  /** Called on the leader when an alert was opened or closed. */
  onAlert?: ((change: AlertChange) => void) | undefined
  /** Called when a disk is found full, and when it has space again. */
  onFull?: ((time: FullTime) => void) | undefined
}

/** A control-plane process: services over the chosen adapters, and their loops. */
export interface ControlNode {
  services: Services
  submitIn: SubmitIn
  /** `leftBehind`: handlers of this process that still work on its runs. */
  close(leftBehind?: readonly Promise<unknown>[]): Promise<void>
}

/** A change of settings is noticed within this time if its wake-up is lost. */
const SETTINGS_INTERVAL_MS = 2_000
/** A full disk that has space again is noticed within this time. */
const ROOM_INTERVAL_MS = 1_000

/** The composition root: the only place that chooses adapters. */
export async function startNode(options: NodeOptions): Promise<ControlNode> {
  const {
    world,
    meter,
    onTrouble,
    onLeadership: onChange = () => {},
    onAlert = () => {},
    onFull = () => {},
    redis: givenRedis = null,
    roles = ALL_NODE_ROLES,
  } = options
  const { store: openedStore, bus: storeBus, submitIn } = await openStorage(options)
  const prepare = async () => {
    // The folder's lock is ours, so the previous process is dead.
    if ('dataDir' in options.storage) await openedStore.write(takeOverFolder(LOCAL_WORKER_PREFIX))
    if (openedStore.engine === 'postgres') while (await openedStore.write(adoptRestoredEvents()));
    // From here on webhooks miss no end of a job, whichever node leads.
    await openedStore.write(beginEnds())
    const files = await openFiles(options, openedStore)
    if (givenRedis === null) return { ...files, openRedis: null }
    // From here on the relay misses no event, whichever node leads.
    await openedStore.write(beginWatermark())
    return { ...files, openRedis: await givenRedis.prepare(world, openedStore) }
  }
  const kept = await prepare().catch(async (error: unknown) => {
    await storeBus.close()
    await openedStore.close()
    throw error
  })
  const limits = { ...DEFAULT_LIMITS, ...kept.limits }
  const ttls = () => ({
    stateMs: Math.ceil(settings.get('event_state_ttl_seconds') * 1_000),
    markMs: Math.ceil(settings.get('event_mark_ttl_seconds') * 1_000),
  })
  const ingest = (events: readonly (ForeignEvent | null)[]) => services.foreignEvents.ingest(events)
  const redis = kept.openRedis?.({ bus: storeBus, world, roles, meter, ttls, ingest, onTrouble }) ?? null
  const bus = redis?.bus ?? storeBus
  const relay = redis === null ? {} : { relay: redis.relay }
  const { certificate } = options
  const machine = {
    disks: disksOf(options),
    certificateEndsAtMs: certificate === undefined ? undefined : new X509Certificate(certificate).validToDate.getTime(),
  }
  const { backups } = openBackups(options)
  const courier = openCourier()
  const given = {
    ...{ world, store: openedStore, bus, meter, limits, courier, ...machine, ...relay, ...kept.deps },
    ...(backups === undefined ? {} : { backups }),
  }
  const services = createServices(given, options.fixed)
  const { settings } = services
  // This store notices a full disk.
  const { store, fullDisks } = services.deps
  fullDisks.onChange(onFull)
  await settings.refresh()
  const newLoop = (duty: Duty) => new Loop({ ...duty, world, meter, onTrouble })
  const watchSettings = newLoop({
    name: 'settings',
    intervalMs: () => SETTINGS_INTERVAL_MS,
    async tick() {
      await settings.refresh()
      return null
    },
  })
  bus.subscribe('settings', () => watchSettings.hurry())
  const watchRoom = newLoop({
    name: 'room',
    intervalMs: () => ROOM_INTERVAL_MS,
    tick: () => fullDisks.look(),
  })
  const loops = [watchSettings, watchRoom, ...nodeDuties(services).map(newLoop)]
  const clock = new ClockWatch(world)
  const running = () => [...loops, ...election.loops]
  const duties = (leading: Leading) => leaderDuties(services, { clock, loops: running, onTrouble, onAlert }, leading)
  const election = new Election({ world, store, bus, meter, clock, onTrouble, onChange, duties })
  services.system.watch(() => ({
    epoch: election.epoch,
    leadsSinceMs: election.leadsSinceMs,
    loops: running().map((loop) => loop.status),
  }))
  // A waiting loop would notice a shorter interval only after its wait.
  settings.onChange(() => {
    for (const loop of running()) loop.hurry()
  })
  for (const loop of loops) loop.start()
  if (roles.has('leader')) election.start()

  return {
    services,
    submitIn: submitIn(services),
    async close(leftBehind = []) {
      await backups?.close()
      await Promise.all([election.stop(), ...loops.map((loop) => loop.stop())])
      const { evidence, minuteCounts, seriesCounts, fairTags } = services
      await Promise.all([evidence, minuteCounts, seriesCounts, fairTags].map((one) => one.close()))
      courier.close()
      await redis?.close()
      await bus.close()
      const close = () => store.close()
      // The next process takes over our runs at once, so the store stays open while a handler works on one.
      if (leftBehind.length === 0 || store.engine === 'postgres') await close()
      else void Promise.allSettled(leftBehind).then(close)
    },
  }
}

interface OpenedStorage {
  store: Store
  bus: Bus
  submitIn: (services: Services) => SubmitIn
}

async function openStorage(options: NodeOptions): Promise<OpenedStorage> {
  const { storage } = options
  if ('dataDir' in storage) {
    const { dataDir } = storage
    const store = openSqlite({ dataDir, now: options.world.now, allowNoFsync: options.allowNoFsync })
    return { store, bus: new EmbeddedBus(), submitIn: () => noTransactions }
  }
  const store = await openDatabase(options)
  const schema = storage.schema ?? 'ichido'
  const onTrouble = (error: unknown) => options.onTrouble('wake-ups', error)
  const bus = new PostgresBus({ world: options.world, schema, ...wakeUps(storage, onTrouble) })
  return { store, bus, submitIn: (services) => submitInTransaction(services, store, channelOf(schema)) }
}

/** Opens only a store, for commands that need no running node. */
export function openStore(
  options: Omit<NodeOptions, 'meter' | 'onTrouble' | 'onLeadership' | 'artifacts'>,
): Promise<Store> {
  const { storage, world, allowNoFsync } = options
  if ('dataDir' in storage) {
    return Promise.resolve(openSqlite({ dataDir: storage.dataDir, now: world.now, allowNoFsync }))
  }
  return openDatabase(options)
}

function openDatabase({ storage, world, allowNoFsync }: Pick<NodeOptions, 'storage' | 'world' | 'allowNoFsync'>) {
  if ('dataDir' in storage) throw new TypeError('A folder is not a database')
  return openPostgres({
    ...('pool' in storage ? { pool: storage.pool } : { url: storage.databaseUrl }),
    ...(storage.schema === undefined ? {} : { schema: storage.schema }),
    now: world.now,
    monotonic: world.monotonic,
    sleep: (ms) => sleep(world, ms),
    allowNoFsync,
  })
}

const NOT_DIRECT =
  'DATABASE_DIRECT_URL leads to a connection pooler, so wake-ups come by polling; name PostgreSQL itself there'

type WakeUps = Required<Pick<PostgresBusOptions, 'connect' | 'canListen' | 'onTrouble'>>

/** Uses the direct address if there is one, else the address of the store. */
function wakeUps(storage: Exclude<Storage, { dataDir: string }>, onTrouble: (error: unknown) => void): WakeUps {
  const { databaseDirectUrl } = storage
  const canListen = async (client: pg.Client) => {
    const { pooled } = await inspect(client)
    if (!pooled) await client.query(READING_SESSION)
    return !pooled
  }
  if (databaseDirectUrl === undefined) {
    return {
      connect: connectBeside(storage),
      canListen,
      onTrouble: (error) => onTrouble(isConnectionLoss(error) ? unreachable(error) : error),
    }
  }
  const direct = new Servers(databaseDirectUrl)
  return {
    connect: () => direct.connect(),
    async canListen(client) {
      const can = await canListen(client)
      if (!can) onTrouble(new Error(NOT_DIRECT))
      return can
    },
    // The store may be reachable, so this is not reported as an unreachable store.
    onTrouble: (error) => onTrouble(new Error(`DATABASE_DIRECT_URL cannot be used: ${String(error)}`)),
  }
}

/** Opens a connection of its own to the store's database. */
function connectBeside(storage: Exclude<Storage, { dataDir: string }>): () => Promise<pg.Client> {
  if ('databaseUrl' in storage) {
    const servers = new Servers(storage.databaseUrl)
    return () => servers.connect()
  }
  return async () => {
    // The options are not copied: a copy would lack the password, which the pool hides from listings.
    const client = new pg.Client(storage.pool.options)
    // Without a listener, an error before the bus listens would end the process.
    client.on('error', () => {})
    await client.connect()
    return client
  }
}

const noTransactions: SubmitIn = async () => {
  throw new TypeError('tx needs PostgreSQL: open({ pool }); an embedded SQLite store has no transactions to share')
}

/** The wake-up is part of the transaction: PostgreSQL delivers it if and when the caller commits. */
function submitInTransaction(services: Services, store: PostgresStore, channel: string): SubmitIn {
  return async (tx, caller, input, submitOptions) => {
    if (!isClient(tx)) throw new TypeError('tx must be a client of pg, inside a transaction')
    const { submission } = services
    const outcome = await submission.submitIn((command) => store.writeIn(tx, command), caller, input, submitOptions)
    if (outcome.kind !== 'created') services.evidence.notCreated(outcome)
    else if (outcome.due) {
      await tx.query({ text: 'SELECT pg_notify($1, $2)', values: [channel, `queue:${outcome.queue}`] })
    }
    return outcome
  }
}

function isClient(tx: unknown): tx is PgClient {
  return typeof tx === 'object' && tx !== null && 'query' in tx && typeof tx.query === 'function'
}
