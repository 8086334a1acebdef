import { createHash } from 'node:crypto'
import { rmSync } from 'node:fs'
import { hostname, platform, release } from 'node:os'
import { dirname } from 'node:path'
import { IchidoError, type RegisteredShape, type RenewedShape } from '../../../protocol/index.ts'
import { sleep } from '../../../world.ts'
import { createWorkerCall, type WorkerHttpOptions } from '../../loop/http.ts'
import { NotEnrolled, OtherWorker } from '../errors.ts'
import { parseJson, readIfThere, writeDurably } from '../output/files.ts'

/** The identity of an agent, as its state folder keeps it. */
export interface Identity {
  url: string
  worker_id: string
  worker_token: string
  name: string
  /** The queues that it may lease from; null: all queues. */
  queues: readonly string[] | null
  /** When the token expires, and when the agent got it, in ms since 1970. */
  expires_at_ms: number
  gained_at_ms: number
  /** The hash of the used enroll token, because the same command line is run many times. */
  enrolled_with: string
}

export interface IdentityOptions extends Pick<WorkerHttpOptions, 'url' | 'world' | 'fetch'> {
  file: string
  /** An enroll token, or a function that makes one when it is needed. */
  enroll: { token: string } | { make(): Promise<string> } | null
  name: string | null
  queues: readonly string[]
  say(line: string): void
}

/** The version of the agent, which is that of its package. A test compares both. */
export const AGENT_VERSION = '0.1.0'
/** Facts for people. They are sent again with each renewal, because the agent and its machine may have been upgraded. */
const META = {
  hostname: hostname(),
  platform: `${platform()} ${release()}`,
  version: AGENT_VERSION,
  node: process.version,
}
const CALL_TIMEOUT_MS = 30_000
/** The token is renewed when this part of its lifetime is left. */
const RENEW_PART = 0.5
const LOOK_MS = 3_600_000
const RETRY_MS = 600_000
const WARN_MS = 24 * 3_600_000
const REGISTER_TRIES_MAX = 5

/** Reads the identity from its file, or registers with an unused enroll token. */
export async function gainIdentity(options: IdentityOptions): Promise<Identity> {
  const { enroll, say } = options
  const known = readIdentity(options)
  if (enroll !== null && 'token' in enroll && known?.enrolled_with !== hashOf(enroll.token)) {
    refuseOther(known, options)
    return register(options, enroll.token, known)
  }
  if (known === null) {
    if (enroll !== null && 'make' in enroll) return register(options, await enroll.make(), null)
    throw new NotEnrolled('This agent is not enrolled yet')
  }
  if (enroll !== null && 'make' in enroll && !mayTake(known, options.queues)) {
    return register(options, await enroll.make(), known)
  }
  try {
    return await renew(known, options)
  } catch (error) {
    if (!(error instanceof IchidoError)) throw error
    if (error.retryable) {
      say(`cannot check whether the token is still valid: ${error.message}`)
      return known
    }
    if (enroll !== null && 'make' in enroll) return register(options, await enroll.make(), known)
    throw new NotEnrolled(`The control plane refuses this agent's token: ${error.message}`)
  }
}

/**
 * Two enroll lines on one machine are two workers, so the second must not replace the first. A worker with the same --name is
 * the same worker, even with other queues.
 */
function refuseOther(known: Identity | null, { name, queues, file }: IdentityOptions): void {
  if (known === null) return
  const isSame = name === null ? mayTake(known, queues) && known.queues?.length === queues.length : name === known.name
  if (isSame) return
  throw new OtherWorker(
    `This folder belongs to worker ${known.name} (folder ${dirname(file)}); use another --name or --state`,
  )
}

function mayTake({ queues }: Identity, asked: readonly string[]): boolean {
  return asked.every((queue) => queues?.includes(queue) ?? true)
}

async function renew(identity: Identity, options: IdentityOptions): Promise<Identity> {
  const call = createWorkerCall({ ...options, token: () => identity.worker_token })
  const { worker_token, expires_at } = (await call(
    '/v1/workers/renew',
    { meta: META },
    CALL_TIMEOUT_MS,
  )) as RenewedShape
  const times = { expires_at_ms: Date.parse(expires_at), gained_at_ms: options.world.now() }
  const renewed = { ...identity, worker_token, ...times }
  writeIdentity(options.file, renewed)
  return renewed
}

async function register(options: IdentityOptions, enrollToken: string, before: Identity | null): Promise<Identity> {
  const { url, world, name, queues } = options
  const call = createWorkerCall({ ...options, token: () => '' })
  const body = {
    enroll_token: enrollToken,
    ...(name === null ? {} : { name }),
    queues,
    meta: META,
    register_id: registerId(options, enrollToken),
    ...(before === null ? {} : { worker_id: before.worker_id, worker_token: before.worker_token }),
  }
  for (let tries = 1; ; tries++) {
    try {
      const made = (await call('/v1/workers/register', body, CALL_TIMEOUT_MS)) as RegisteredShape
      const identity = {
        url,
        worker_id: made.worker_id,
        worker_token: made.worker_token,
        name: made.name,
        queues: made.queues,
        expires_at_ms: Date.parse(made.expires_at),
        gained_at_ms: world.now(),
        enrolled_with: hashOf(enrollToken),
      }
      writeIdentity(options.file, identity)
      rmSync(pendingFile(options), { force: true })
      return identity
    } catch (error) {
      if (!(error instanceof IchidoError)) throw error
      // A revoked or unknown worker cannot register again; a new enroll token makes a new worker.
      if (before !== null && !error.retryable) return register(options, enrollToken, null)
      // No retry makes an untrusted certificate trusted.
      if (!error.retryable || error.details.untrusted === true || tries >= REGISTER_TRIES_MAX) throw error
      options.say(`cannot register yet: ${error.message}`)
      await sleep(world, 1_000 * 2 ** tries)
    }
  }
}

/** Stored before it is sent, so that an agent that dies before the answer repeats the same registration. */
function registerId(options: IdentityOptions, enrollToken: string): string {
  const text = readIfThere(pendingFile(options))
  const pending = text === null ? undefined : (parseJson(text) as { enroll: string; register_id: string } | undefined)
  const enroll = hashOf(enrollToken)
  if (pending?.enroll === enroll) return pending.register_id
  const made = { enroll, register_id: options.world.secret(24) }
  writeDurably(pendingFile(options), JSON.stringify(made))
  return made.register_id
}

function pendingFile({ file }: IdentityOptions): string {
  return `${file}.pending`
}

/** Renews the token before it expires. */
export class TokenKeeper {
  readonly #options: IdentityOptions
  readonly #stopping = new AbortController()
  readonly #onRenewed: (token: string) => void
  #identity: Identity

  constructor(identity: Identity, options: IdentityOptions, onRenewed: (token: string) => void = () => {}) {
    this.#identity = identity
    this.#options = options
    this.#onRenewed = onRenewed
    void this.#run()
  }

  readonly token = (): string => this.#identity.worker_token

  stop(): void {
    this.#stopping.abort()
  }

  async #run(): Promise<void> {
    const { world } = this.#options
    const { signal } = this.#stopping
    while (!signal.aborted) {
      const dueInMs = this.#dueInMs()
      if (dueInMs > 0) await sleep(world, Math.min(dueInMs, LOOK_MS), signal)
      else if (!(await this.#renew())) await sleep(world, RETRY_MS * (0.5 + world.random()), signal)
    }
  }

  #dueInMs(): number {
    const { expires_at_ms: endMs, gained_at_ms: sinceMs } = this.#identity
    return endMs - (endMs - sinceMs) * RENEW_PART - this.#options.world.now()
  }

  async #renew(): Promise<boolean> {
    const { world, say } = this.#options
    try {
      this.#identity = await renew(this.#identity, this.#options)
      this.#onRenewed(this.token())
      return true
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error)
      const leftMs = this.#identity.expires_at_ms - world.now()
      if (leftMs <= 0) say(`warning: the token has expired; enroll this agent again (${why})`)
      else if (leftMs <= WARN_MS) {
        say(`warning: the token expires in ${Math.ceil(leftMs / 3_600_000)} h and could not be renewed: ${why}`)
      }
      return false
    }
  }
}

function readIdentity({ file, url }: IdentityOptions): Identity | null {
  const text = readIfThere(file)
  const identity = text === null ? undefined : (parseJson(text) as Identity | undefined)
  return identity?.url === url ? identity : null
}

function writeIdentity(file: string, identity: Identity): void {
  writeDurably(file, `${JSON.stringify(identity, null, 2)}\n`, 0o600)
}

function hashOf(secret: string): string {
  return createHash('sha256').update(secret).digest('hex')
}
