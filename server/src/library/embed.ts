import { Client, type World } from '@ichido/sdk'
import { forTerminal } from '@ichido/sdk/terminal'
import { HandlerLoop, type WorkerLoop } from '@ichido/sdk/worker'
import { codeOf, whyNotOpened } from '../core/node/store-errors.ts'
import { LOCAL_WORKER_PREFIX } from '../core/run/job.ts'
import { type ControlNode, startNode } from '../node/start-node.ts'
import { TroubleLog } from '../node/trouble-log.ts'
import { realWorld } from '../node/world.ts'
import { LOCAL_ADMIN } from '../services/access/access.ts'
import { silentMeter } from '../services/system/meter.ts'
import { CLOSED, type Ichido, NotOpened, type StoreOptions, submitting } from './api.ts'
import { localTransport } from './local-transport.ts'
import { localWorkerTransport } from './local-worker.ts'
import { SpareHeart } from './spare-heart.ts'

const DRAIN_MS = 30_000

/** Starts a node in this process, and returns the library's interface to it. */
export async function openStore(options: StoreOptions): Promise<Ichido> {
  const world = options.world ?? realWorld
  // Called only after the node has reported trouble, so it exists.
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

/** Explains why a store cannot be opened, with the names of the options. */
function explain(error: unknown, options: StoreOptions): never {
  const given = 'pool' in options ? "the pool's options" : 'databaseUrl'
  const names = { dataDir: 'dataDir', databaseUrl: given, schema: 'schema' }
  const reason = whyNotOpened(error, 'dataDir' in options ? options.dataDir : null, names)
  throw reason === null ? error : new NotOpened(`${reason.message}. ${reason.advice}`, codeOf(error))
}

/** Not for SQLite, where no other process could get the job. */
function spareOf(options: StoreOptions, onTrouble: (where: string, error: unknown) => void): SpareHeart | null {
  // An injected clock does not apply to the thread.
  if ('dataDir' in options || options.world !== undefined) return null
  return new SpareHeart({ storage: options, world: realWorld, onTrouble: (error) => onTrouble('heartbeats', error) })
}

/** The library's interface to a node of this process. */
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
      // Two handlers would each get some of the jobs, and a forgotten stub would go unnoticed.
      if (loops.has(name))
        throw new TypeError(`The kind ${kind.name} already has a handler; use \`concurrency\` for more runs at a time`)
      const workerId = `${LOCAL_WORKER_PREFIX}${world.uuid()}`
      const deps = {
        transport: localWorkerTransport(node.services, workerId, () => spare?.start()),
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

/** Logs trouble as warnings of the process. */
const WARNINGS = {
  warn(...args: unknown[]) {
    const [fields, text] = args.length > 1 ? args : [{}, ...args]
    const { why } = fields as { why?: string }
    process.emitWarning(forTerminal(why === undefined ? String(text) : `${text}: ${why}`), 'IchidoWarning')
  },
}
