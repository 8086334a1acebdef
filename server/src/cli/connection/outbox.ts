import { createHash } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { type Accepted, mayRetry, NoAnswer } from '@ichido/sdk/client'
import { type Network, Outbox, type OutboxItem, type Send, sendJobs } from '@ichido/sdk/outbox'
import { FileStore, fileFlushLock } from '@ichido/sdk/outbox/node'
import type { SubmitRequest } from '@ichido/sdk/protocol'
import { realWorld } from '../../node/world.ts'
import { Failure } from '../output/exit.ts'
import { out, outJson, paint, say } from '../output/terminal.ts'
import { commandLine } from '../self.ts'
import { type Connection, processEnv, Unreachable } from './connect.ts'

const FILE = 'outbox.jsonl'
/** A file name may have 255 bytes. */
const NAME_LENGTH_MAX = 200
const PROBE_WITHIN_MS = 5_000

export type KeptJob = OutboxItem<SubmitRequest, Accepted>

/** The submissions that this machine keeps for one server and one token. */
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

  /** The error of the last try of an item by this process. */
  errorOf({ key }: KeptJob): unknown {
    return this.#errors.get(key)
  }

  /** The outboxes of other tokens for the same server, because the token may have been replaced. */
  async otherOutboxes(): Promise<{ path: string; count: number }[]> {
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
 * Each server and token has its own file, so that a submission goes only to its server and under its user. Keys are per user:
 * under another user it would be a second job.
 */
function pathFor({ url, token }: Connection): string {
  const base = processEnv.env.XDG_STATE_HOME || join(homedir(), '.local', 'state')
  const { origin, pathname } = new URL(url)
  const server = `${origin}${pathname.replace(/\/+$/, '')}`
  // The name is for people; the hash distinguishes `/a/b` from `/a_b`.
  const named = `${server.replaceAll(/[^\w.-]+/g, '_').slice(0, NAME_LENGTH_MAX)}-${shortHash(server)}`
  return join(base, 'ichido', 'outbox', named, token === undefined ? 'open' : shortHash(token), FILE)
}

function shortHash(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 12)
}

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
    /** After a try without an answer: whether the server answers at all, so that only this item gets no answer. */
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

/** The JSON form of an item. */
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

/** The body may be anything, because a person may have edited the file. */
export function kindOf(body: unknown): string {
  return typeof body === 'object' && body !== null && 'kind' in body ? String(body.kind) : '-'
}

/**
 * Stores the submission first, and sends it after the earlier ones, so that it is one job even if this process dies. A refused
 * submission is not kept, because the caller sees the reason.
 */
export async function submitOrKeep(
  connection: Connection,
  request: SubmitRequest,
  { key, json }: { key?: string; json?: boolean },
): Promise<void> {
  const kept = new KeptJobs(connection)
  try {
    const item = await deliver(kept, await put(kept, request, key))
    const error = kept.errorOf(item)
    if (item.status === 'failed') {
      if (error === undefined) throw failedInOtherProcess(item)
      if (!(error instanceof Unreachable || mayRetry(error))) await kept.drop(item.id)
      throw error
    }
    if (item.answer !== undefined) sayRemarks(item.answer)
    else if (item.status === 'queued') sayKept(item, error)
    else say(`Another process sent the job; see \`${commandLine(`keys show ${item.key}`)}\``)
    if (json) outJson(toShape(item))
    else out(item.answer?.response.job_id ?? item.id)
  } finally {
    await kept.close()
  }
}

/** An item that failed before with this key gets new attempts. */
async function put(kept: KeptJobs, request: SubmitRequest, key: string | undefined): Promise<KeptJob> {
  const item = await kept.put(request, key === undefined ? {} : { key })
  return item.status === 'failed' ? kept.retry(item.id) : item
}

async function deliver(kept: KeptJobs, item: KeptJob): Promise<KeptJob> {
  // A new submission must not use up the attempts of items that wait for their next one.
  const tried = await kept.flush({ onlyDue: true })
  const found = [...tried, ...(await kept.list())].find(({ id }) => id === item.id)
  return found ?? { ...item, status: 'sent' }
}

/** Another process tried it; the item is kept for the caller of that process. */
function failedInOtherProcess({ id, error = 'It failed' }: KeptJob): Failure {
  return new Failure(
    error,
    `Another process tried to send the job. It is kept here as item ${id}; see \`${commandLine('outbox list')}\``,
  )
}

function sayKept({ id, key, error }: KeptJob, thrown: unknown): void {
  const why = error ?? (thrown instanceof Error ? thrown.message : 'No server answers')
  say(why)
  say(`It is kept here as item ${id}, with the key ${key}. Send it with \`${commandLine('outbox flush')}\``)
}

export function sayRemarks({ response, replayed }: Accepted): void {
  for (const warning of [...response.quota_warnings, response.cost_limit_warning ?? []].flat()) {
    say(`${paint('yellow', 'warning:')} ${warning}`)
  }
  if (replayed) say('The key was used before; this is its job.')
}
