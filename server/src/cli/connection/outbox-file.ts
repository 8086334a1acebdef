import { createHash } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { type Accepted, NoAnswer } from '@ichido/sdk/client'
import { type Network, Outbox, type OutboxItem, type Send, sendJobs } from '@ichido/sdk/outbox'
import { FileStore, fileFlushLock } from '@ichido/sdk/outbox/node'
import type { SubmitRequest } from '@ichido/sdk/protocol'
import { realWorld } from '../../node/world.ts'
import { paint, say } from '../output/terminal.ts'
import { type Connection, Unreachable } from './connect.ts'
import { processEnv } from './process-env.ts'

export type KeptJob = OutboxItem<SubmitRequest, Accepted>

/** The submissions that are kept on this machine for a server and whoever the token stands for. */
export class KeptJobs extends Outbox<SubmitRequest, Accepted> {
  readonly path: string
  readonly #errors: Map<string, unknown>

  constructor(connection: Connection) {
    const { send, network, errors } = delivering(connection)
    const path = pathFor(connection)
    super({
      store: storeAt(path),
      lock: fileFlushLock(path, realWorld),
      send,
      network,
      world: realWorld,
    })
    this.path = path
    this.#errors = errors
  }

  /** What the last try of an item threw, if this process made one. */
  errorOf({ key }: KeptJob): unknown {
    return this.#errors.get(key)
  }

  /** What is kept for the same server under other tokens: a token may have been replaced meanwhile. */
  async elsewhere(): Promise<{ path: string; count: number }[]> {
    const server = dirname(dirname(this.path))
    const callers = existsSync(server) ? readdirSync(server) : []
    const paths = callers.map((caller) => join(server, caller, FILE))
    const others = paths.filter((path) => path !== this.path && existsSync(path))
    const counted = others.map(async (path) => ({ path, count: (await storeAt(path).list()).length }))
    return (await Promise.all(counted)).filter(({ count }) => count > 0)
  }
}

function storeAt(path: string): FileStore {
  const warn = (message: string) => say(`${paint('yellow', 'warning:')} ${message}`)
  return new FileStore({ path, world: realWorld, warn })
}

/**
 * One file for each server and token: what was meant for one server is not sent to another, and nobody sends what
 * somebody else kept. Keys are per user: under another name it would be a second job.
 */
function pathFor({ url, token }: Connection): string {
  const base = processEnv.env.XDG_STATE_HOME || join(homedir(), '.local', 'state')
  const { origin, pathname } = new URL(url)
  const server = `${origin}${pathname.replace(/\/+$/, '')}`
  // The name is for people, and alone the same for `/a/b` and `/a_b`.
  const named = `${server.replaceAll(/[^\w.-]+/g, '_').slice(0, NAME_LENGTH_MAX)}-${shortHash(server)}`
  return join(base, 'ichido', 'outbox', named, token === undefined ? 'open' : shortHash(token), FILE)
}

const FILE = 'outbox.jsonl'
/** A folder's name may have 255 bytes. */
const NAME_LENGTH_MAX = 200

function shortHash(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 12)
}

/** Long enough for any server that is there. */
const PROBE_WITHIN_MS = 5_000

function delivering({ transport, open }: Connection) {
  const submit = sendJobs(transport)
  const errors = new Map<string, unknown>()
  let inDoubt = false
  const send: Send<SubmitRequest, Accepted> = async (delivery, signal) => {
    try {
      return await submit(delivery, signal)
    } catch (error) {
      errors.set(delivery.key, error)
      inDoubt = true
      throw error instanceof Unreachable ? new NoAnswer(error.message, { cause: error }) : error
    }
  }
  const network: Network = {
    asks: true,
    /** Nobody answered: does the server answer anything, so that it is this item that gets no answer? */
    async online() {
      if (!inDoubt) return true
      inDoubt = false
      const probe = open('/healthz', { signal: AbortSignal.timeout(PROBE_WITHIN_MS) })
      return probe.then(
        async ({ body }) => {
          await body?.cancel()
          return true
        },
        (error: unknown) => error instanceof Error && 'status' in error,
      )
    },
    onOnline: () => () => {},
  }
  return { send, network, errors }
}

/** As programs read it. */
export function toShape({ id, key, body, savedAtMs, attempts, status, error, answer }: KeptJob) {
  return {
    item_id: id,
    key,
    kind: kindOf(body),
    status,
    attempts,
    error: error ?? null,
    saved_at: new Date(savedAtMs).toISOString(),
    job_id: answer?.response.job_id ?? null,
  }
}

/** Of a file that somebody wrote to by hand, anything. */
export function kindOf(body: unknown): string {
  return typeof body === 'object' && body !== null && 'kind' in body ? String(body.kind) : '-'
}
