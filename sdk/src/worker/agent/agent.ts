import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { NAME_PATTERN, NAME_RULE } from '../../protocol/index.ts'
import { Fatal, messageOf } from '../loop/failure.ts'
import { httpWorkerTransport } from '../loop/http.ts'
import { type Outcome, type RunInHand, WorkerLoop } from '../loop/loop.ts'
import type { WorkerDeps } from '../loop/ports.ts'
import type { PublisherDeps } from '../loop/progress.ts'
import { type Handler, handleRun } from '../worker.ts'
import { BadOptions } from './errors.ts'
import { ThreadHeart } from './heartbeat-thread.ts'
import { gainIdentity, type IdentityOptions, TokenKeeper } from './identity/identity.ts'
import { lockState } from './identity/lock.ts'
import { RunAnnouncer, Trouble } from './output/announcer.ts'
import { httpArtifacts } from './output/artifacts.ts'
import { execWork } from './process/exec.ts'
import { settleLeftovers } from './process/leftovers.ts'
import { RunFolders } from './process/run-folder.ts'
import { machineClocks, nodeWorld } from './world.ts'

export interface AgentOptions {
  url: string
  enroll: IdentityOptions['enroll']
  name: string | null
  queues: readonly string[]
  kinds: readonly string[]
  concurrency: number
  work: { exec: string } | { handlers: string }
  /** Variables for the programs besides the inherited ones. */
  env: Readonly<Record<string, string>>
  /** The folder of the token and the runs; default: one in the user's home for this server and name. */
  stateDir: string | null
  /** How long runs may continue after the agent was told to stop. */
  drainMs: number
  /** Allows plain HTTP to other machines; anyone on the network can then read the token. */
  insecure: boolean
}

/** The program of this process; supervisors and the heartbeat thread start from its file. */
interface AgentProgram {
  file: string
  say(line: string): void
}

export interface RunningAgent {
  /** Takes no more work; a second call stops the runs. */
  stop(): void
  running(): number
  /** Resolves to null if the agent was told to stop, or to the reason why it could not continue. */
  ended: Promise<string | null>
}

export async function startAgent(options: AgentOptions, program: AgentProgram): Promise<RunningAgent> {
  const { queues, say } = { ...options, ...program }
  const url = checkUrl(options)
  checkOptions(options)
  const handlers = 'handlers' in options.work ? await loadHandlers(options.work.handlers) : null
  const state = options.stateDir ?? defaultState(url, options.name)
  const unlock = lockState(join(state, 'lock'))
  const identityOptions = { ...options, url, say, world: nodeWorld, file: join(state, 'identity.json') }
  const identity = await gainIdentity(identityOptions).catch((error: unknown) => {
    unlock()
    throw error
  })
  let onRenewed = (_token: string) => {}
  const keeper = new TokenKeeper(identity, identityOptions, (token) => onRenewed(token))
  const folders = new RunFolders(join(state, 'runs'), 'exec' in options.work)

  const ending = new AbortController()
  let why: string | null = null
  const fail = (reason: string) => {
    why ??= reason
    loop?.hurry()
    ending.abort()
  }
  const trouble = new Trouble({ say, fail, world: nodeWorld })
  const onTrouble = trouble.on
  const announcer = new RunAnnouncer(say, nodeWorld)
  const transport = httpWorkerTransport({
    url,
    token: keeper.token,
    world: nodeWorld,
    onAnswer: trouble.over,
    onDraining: announcer.draining,
  })
  const deps: WorkerDeps = { transport, world: nodeWorld, clocks: machineClocks, onTrouble, outbox: folders }
  let thread: ThreadHeart | null = null
  let loop: WorkerLoop | null = null
  const rest = { queues, concurrency: options.concurrency }
  const artifacts = httpArtifacts({ url, token: keeper.token, world: nodeWorld })
  if (handlers === null) {
    const supervisor = [process.execPath, ...process.execArgv, program.file, 'supervise'] as const
    const command = 'exec' in options.work ? fromHere(options.work.exec) : ''
    const work = announcer.of(
      execWork({ command, env: options.env, supervisor, folders, transport, artifacts, world: nodeWorld, onTrouble }),
    )
    loop = new WorkerLoop({ ...rest, kinds: options.kinds, startAtOnce: false, work }, deps)
  } else {
    const kinds = options.kinds.length > 0 ? options.kinds : [...handlers.keys()]
    const onDeath = (error: unknown) => fail(`The heartbeat thread ended: ${String(error)}`)
    const heart = new ThreadHeart({
      file: program.file,
      url,
      token: keeper.token(),
      world: nodeWorld,
      onTrouble,
      onDeath,
    })
    thread = heart
    onRenewed = (token) => heart.renewed(token)
    const work = announcer.of(handlersWork(handlers, deps))
    loop = new WorkerLoop({ ...rest, kinds, startAtOnce: true, work }, { ...deps, keeper: heart })
  }
  say(`worker ${identity.name} (${identity.worker_id}, process ${process.pid}) takes ${queues.join(', ')} from ${url}`)
  const settling = settleLeftovers({ folders, transport, artifacts, world: nodeWorld, say, onTrouble }, ending.signal)
  const running = loop

  async function end(): Promise<string | null> {
    await new Promise<void>((resolve) => {
      if (ending.signal.aborted) resolve()
      else ending.signal.addEventListener('abort', () => resolve())
    })
    await running.close(options.drainMs)
    await settling
    await thread?.close()
    keeper.stop()
    // Before the lock is released, so that the next agent in this folder is not detached.
    if (why === null) await transport.detach().catch(() => {})
    unlock()
    return why
  }

  return {
    stop() {
      if (ending.signal.aborted) running.hurry()
      ending.abort()
    },
    running: () => announcer.running,
    ended: end(),
  }
}

/** A leading ./ or ../ means the folder in which the agent was started; programs run in their own folders. */
function fromHere(command: string): string {
  return /^\.\.?\//.test(command) ? `'${process.cwd().replaceAll("'", `'\\''`)}'/${command}` : command
}

function checkOptions({ queues, kinds, concurrency }: AgentOptions): void {
  if (queues.length === 0) throw new BadOptions('Name at least one queue')
  for (const [flag, names] of Object.entries({ '--queue': queues, '--kind': kinds })) {
    const wrong = names.find((name) => !NAME_PATTERN.test(name))
    if (wrong !== undefined) throw new BadOptions(`${flag} ${NAME_RULE}, not ${JSON.stringify(wrong)}`)
  }
  if (concurrency < 1) throw new BadOptions('--concurrency must be at least 1')
}

function checkUrl({ url: given, insecure }: AgentOptions): string {
  if (!URL.canParse(given)) throw new BadOptions(`${given} is not a URL`)
  const url = new URL(given)
  const isLocal = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(url.hostname)
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && (isLocal || insecure))) {
    throw new BadOptions(
      `${given} is not https: anyone on the network could read the worker's token. Use https, or --insecure if you must`,
    )
  }
  return given.replace(/\/+$/, '')
}

function defaultState(url: string, name: string | null): string {
  const base = process.env.XDG_STATE_HOME ?? join(homedir(), '.local', 'state')
  const { host, pathname } = new URL(url)
  return join(base, 'ichido', `${host}${pathname}-${name ?? 'agent'}`.replaceAll(/[^\w.-]+/g, '_'))
}

/** The handler of each kind: the default export of a handlers file. */
type Handlers = ReadonlyMap<string, Handler<unknown, unknown>>

async function loadHandlers(file: string): Promise<Handlers> {
  const { default: exported } = await load(resolve(file), file)
  const entries = typeof exported === 'object' && exported !== null ? Object.entries(exported) : []
  const handlers = entries.filter((entry): entry is [string, Handler<unknown, unknown>] => {
    return typeof entry[1] === 'function'
  })
  if (handlers.length === 0 || handlers.length < entries.length) {
    throw new BadOptions(
      `--handlers: ${file} must export an object of functions as its default: { kind: (run) => result, … }`,
    )
  }
  return new Map(handlers)
}

/** Reports a missing or broken module in one sentence. */
async function load(path: string, file: string): Promise<{ default?: unknown }> {
  if (!existsSync(path)) throw new BadOptions(`--handlers: there is no file ${path}`)
  try {
    return (await import(pathToFileURL(path).href)) as { default?: unknown }
  } catch (error) {
    const [why = ''] = messageOf(error).split('\n')
    throw new BadOptions(`--handlers: ${file} could not be loaded: ${why}`, { cause: error })
  }
}

/** Gives each lease to the handler of its kind. */
function handlersWork(handlers: Handlers, deps: PublisherDeps): (run: RunInHand) => Promise<Outcome> {
  const unknown = () => {
    throw new Fatal('UNKNOWN_KIND', 'This worker has no handler for this kind')
  }
  return (run) => handleRun({ options: {} }, handlers.get(run.lease.kind) ?? unknown, run, deps)
}
