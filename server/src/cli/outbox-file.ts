import { homedir } from 'node:os'
import { join } from 'node:path'
import { type Accepted, NoAnswer } from '@ichido/sdk/client'
import { type Network, Outbox, type OutboxItem, type Send, sendJobs } from '@ichido/sdk/outbox'
import { FileStore, fileFlushLock } from '@ichido/sdk/outbox/node'
import type { SubmitRequest } from '@ichido/sdk/protocol'
import { realWorld } from '../world.ts'
import { type Connection, Unreachable } from './connect.ts'
import { surroundings } from './surroundings.ts'
import { paint, say } from './terminal.ts'

export type KeptJob = OutboxItem<SubmitRequest, Accepted>

/** The submissions that are kept on this machine for a server. */
export class KeptJobs extends Outbox<SubmitRequest, Accepted> {
  readonly #errors: Map<string, unknown>

  constructor(connection: Connection) {
    const { send, network, errors } = delivering(connection)
    const path = pathFor(connection.url)
    const warn = (message: string) => say(`${paint('yellow', 'warning:')} ${message}`)
    super({
      store: new FileStore({ path, world: realWorld, warn }),
      lock: fileFlushLock(path, realWorld),
      send,
      network,
      world: realWorld,
    })
    this.#errors = errors
  }

  /** What the last try of an item threw, if this process made one. */
  errorOf({ key }: KeptJob): unknown {
    return this.#errors.get(key)
  }
}

/** One file for each server: what was meant for one is not sent to another. */
function pathFor(url: string): string {
  const base = surroundings.env.XDG_STATE_HOME || join(homedir(), '.local', 'state')
  const { host, pathname } = new URL(url)
  return join(base, 'ichido', 'outbox', `${host}${pathname}`.replaceAll(/[^\w.-]+/g, '_'), 'outbox.jsonl')
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
