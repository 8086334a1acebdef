import {
  Client,
  type HandleOptions,
  type Handler,
  type HttpOptions,
  httpTransport,
  type Kind,
  type RetryOptions,
  type World,
} from '@ichido/sdk'
import { forTerminal } from '@ichido/sdk/terminal'
import { HandlerLoop, type WorkerLoop } from '@ichido/sdk/worker'
import type pg from 'pg'
import { codeOf } from '../core/node/cause.ts'
import { nodeTooOld } from '../core/node/node-version.ts'
import { whyNotOpened } from '../core/node/not-opened.ts'
import { LOCAL_WORKER_PREFIX } from '../core/run/job.ts'
import { type ControlNode, startNode } from '../node/main.ts'
import { TroubleLog } from '../node/trouble-log.ts'
import { realWorld } from '../node/world.ts'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { silentMeter } from '../services/system/meter.ts'
import { localTransport } from './local-transport.ts'
import { localWorkerTransport } from './local-worker.ts'
import { SpareHeart } from './spare-heart.ts'

export type OpenOptions = (
  | { dataDir: string }
  // `databaseDirectUrl` is where wake-ups come from when the pool or `databaseUrl` leads to a pooler such as PgBouncer.
  | { pool: pg.Pool; schema?: string; databaseDirectUrl?: string }
  | { databaseUrl: string; schema?: string; databaseDirectUrl?: string }
  | { url: string; token?: string; retry?: RetryOptions }
) & {
  /** Told of what goes wrong outside of any call, such as a lost connection that is being made anew; default: a warning. */
  onTrouble?: (where: string, error: unknown) => void
  /** Clock, timers, ids and randomness; for tests and simulations. */
  world?: World
}

/** Ichido inside an application, or a connection to one that runs elsewhere. */
export interface Ichido extends Submitting {
  /** Works on jobs of this kind until closed. In process only. */
  handle<PayloadIn, PayloadOut, Result, ResultIn>(
    kind: Kind<PayloadIn, PayloadOut, Result, ResultIn>,
    handler: Handler<PayloadOut, NoInfer<ResultIn>>,
    options?: HandleOptions,
  ): void
  /**
   * Takes no more work, waits for running handlers (30 s unless told otherwise), tells those that still run to stop, and lets
   * go of the store. A handler that goes on for 10 s more is left behind: `onTrouble` is told, and its job waits for its lease.
   */
  close(options?: { drainMs?: number }): Promise<void>
}

type Submitting = Pick<Client, 'submit' | 'batch' | 'trigger' | 'job' | 'list' | 'reservations' | 'artifacts'>

const DRAIN_MS = 30_000
const CLOSED = 'This Ichido is closed'

export async function open(options: OpenOptions): Promise<Ichido> {
  if ('url' in options) return overHttp(options)
  const tooOld = nodeTooOld(process.versions.node)
  if (tooOld !== null) throw new Error(tooOld)
  if (!['dataDir', 'pool', 'databaseUrl'].some((name) => Object.hasOwn(options, name) && options[name as never])) {
    throw new TypeError('open() needs one of dataDir, pool, databaseUrl or url; all of them are missing or undefined')
  }
  if ('databaseUrl' in options && !('pool' in options) && !/^postgres(ql)?:\/\//.test(options.databaseUrl)) {
    throw new TypeError('databaseUrl must be an address like postgres://user:password@host/database')
  }
  const world = options.world ?? realWorld
  // Asked once the node has met trouble, so when it is there.
  const askStore = () => starting.then((node) => node.services.deps.store.health())
  const troubles = new TroubleLog({ logger: WARNINGS, world, askStore })
  const { onTrouble = troubles.on } = options
  const { onFull } = troubles
  const starting = startNode({ storage: options, world, meter: silentMeter, allowNoFsync: false, onTrouble, onFull })
  starting.catch(() => troubles.close())
  const node = await starting.catch((error: unknown) => explain(error, options))
  const ichido = embed(node, world, onTrouble, spareOf(options, onTrouble))
  return {
    ...ichido,
    async close(closeOptions) {
      await ichido.close(closeOptions).finally(() => troubles.close())
    },
  }
}

/** What to do about a store that cannot be opened, by the names of the options. */
function explain(error: unknown, options: Exclude<OpenOptions, { url: string }>): never {
  const given = 'pool' in options ? "the pool's options" : 'databaseUrl'
  const names = { dataDir: 'dataDir', databaseUrl: given, schema: 'schema' }
  const told = whyNotOpened(error, 'dataDir' in options ? options.dataDir : null, names)
  throw told === null ? error : new NotOpened(`${told.message}. ${told.advice}`, codeOf(error))
}

/** The store could not be opened; the message says why, and what to do. */
export class NotOpened extends Error {
  override readonly name = 'NotOpened'
  /** The code of the system or of PostgreSQL, such as ECONNREFUSED or 3D000; empty when there is none. */
  readonly code: string

  constructor(message: string, code: string) {
    super(message)
    this.code = code
    // Uncaught, it is read by whoever set the options: where in this library it came up tells them nothing.
    this.stack = `${this.name}: ${message}`
  }
}

/** SQLite has one process: who holds up its event loop holds up everybody who could be handed the job. */
function spareOf(
  options: Exclude<OpenOptions, { url: string }>,
  onTrouble: (where: string, error: unknown) => void,
): SpareHeart | null {
  // In a world of its own time is not the thread's.
  if ('dataDir' in options || options.world !== undefined) return null
  return new SpareHeart({ storage: options, world: realWorld, onTrouble: (error) => onTrouble('heartbeats', error) })
}

/** The library's front over a node of this process. */
export function embed(
  node: ControlNode,
  world: World,
  onTrouble: (where: string, error: unknown) => void,
  spare: SpareHeart | null = null,
): Ichido {
  const transport = localTransport(node.services, LOCAL_ADMIN, node.submitIn)
  const client = new Client(transport)
  const loops = new Map<string, Pick<WorkerLoop, 'close' | 'leftBehind'>>()
  let closing: Promise<void> | null = null

  async function close(drainMs: number): Promise<void> {
    try {
      await Promise.all([...loops.values()].map((loop) => loop.close(drainMs)))
    } finally {
      await spare?.close()
      await transport.close(new Error(CLOSED))
      await node.close([...loops.values()].flatMap(({ leftBehind }) => leftBehind))
    }
  }

  return {
    ...submitting(client),
    handle(kind, handler, handleOptions = {}) {
      if (closing !== null) throw new Error(CLOSED)
      const name = JSON.stringify([kind?.queue, kind?.name])
      // Each would get some of the jobs: nobody means that, and a forgotten stub would go unnoticed.
      if (loops.has(name))
        throw new TypeError(`There is a handler of ${kind.name} already; \`concurrency\` lets it do more`)
      const workerId = `${LOCAL_WORKER_PREFIX}${world.uuid()}`
      const deps = {
        transport: localWorkerTransport(node.services, workerId),
        world,
        ...(spare === null ? {} : { clocks: spare.clocks }),
        onTrouble: (error: unknown) => onTrouble(`handler of ${kind.name}`, error),
      }
      loops.set(name, new HandlerLoop(kind, handler, handleOptions, deps))
      spare?.keep(workerId)
    },
    close({ drainMs = DRAIN_MS } = {}) {
      closing ??= close(drainMs)
      return closing
    },
  }
}

function overHttp({ url, token, retry, world }: HttpOptions): Ichido {
  if (!/^https?:\/\//.test(url))
    throw new TypeError(`url must begin with http:// or https://, is ${JSON.stringify(url)}`)
  let closed = false
  const send: typeof fetch = async (...request) => {
    if (closed) throw new Error(CLOSED)
    return fetch(...request)
  }
  const client = new Client(httpTransport({ url, token, retry, world, fetch: send }))
  return {
    ...submitting(client),
    handle() {
      throw new TypeError('Handlers run where the store is: open({ dataDir }) or open({ pool })')
    },
    async close() {
      closed = true
    },
  }
}

function submitting(client: Client): Submitting {
  return {
    submit: client.submit.bind(client) as Ichido['submit'],
    batch: client.batch.bind(client),
    trigger: client.trigger.bind(client),
    job: client.job.bind(client) as Ichido['job'],
    list: client.list.bind(client),
    reservations: client.reservations,
    artifacts: client.artifacts,
  }
}

/** As warnings of the process, one for each sort of trouble and minute. */
const WARNINGS = {
  warn(...said: unknown[]) {
    const [fields, text] = said.length > 1 ? said : [{}, ...said]
    const { why } = fields as { why?: string }
    process.emitWarning(forTerminal(why === undefined ? String(text) : `${text}: ${why}`), 'IchidoWarning')
  },
}
