import { homedir } from 'node:os'
import { join } from 'node:path'
import { NAME_PATTERN, NAME_RULE } from '../../protocol/index.ts'
import type { WorkerDeps } from '../deps.ts'
import { httpWorkerTransport } from '../loop/http.ts'
import { WorkerLoop } from '../loop/loop.ts'
import { BadOptions } from './bad-options.ts'
import { handlersWork, loadHandlers } from './handlers.ts'
import { ThreadHeart } from './heartbeat/heartbeat-thread.ts'
import { gainIdentity, type IdentityOptions, TokenKeeper } from './identity/identity.ts'
import { lockState } from './identity/lock.ts'
import { Trouble } from './identity/trouble.ts'
import { httpArtifacts } from './output/artifacts.ts'
import { RunAnnouncer } from './output/run-announcer.ts'
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
  /** Variables that programs get beside those that they inherit. */
  env: Readonly<Record<string, string>>
  /** Where its token and its runs are; by default a folder of the user's for this server and name. */
  stateDir: string | null
  /** How long what runs may go on after the agent was told to stop. */
  drainMs: number
  /** Plain http to other machines, where anybody on the way can read the token. */
  insecure: boolean
}

/** What the process is, so that it can start itself again as a supervisor or as a thread. */
export interface AgentProgram {
  file: string
  say(line: string): void
}

export interface RunningAgent {
  /** Takes no more work; a second call stops what runs. */
  stop(): void
  /** How many runs are at work. */
  running(): number
  /** Null: as it was told to. Otherwise why it could not go on. */
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
  const transport = httpWorkerTransport({ url, token: keeper.token, world: nodeWorld, onAnswer: trouble.over })
  const deps: WorkerDeps = { transport, world: nodeWorld, clocks: machineClocks, onTrouble, outbox: folders }
  let thread: ThreadHeart | null = null
  let loop: WorkerLoop | null = null
  const rest = { queues, concurrency: options.concurrency }
  const announcer = new RunAnnouncer(say, nodeWorld)
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
    // Before the next agent can begin here.
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

/** Programs run in folders of their own; what was typed means the folder in which it was typed. */
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
