import { parseArgs } from 'node:util'
import { forTerminal } from '../../terminal.ts'
import { type AgentOptions, type RunningAgent, startAgent } from './agent.ts'
import { BadOptions, isExpected } from './errors.ts'
import { addedEnv } from './process/inherited.ts'
import { nodeWorld } from './world.ts'

const USAGE = `usage: node agent.mjs --url URL --enroll TOKEN --queue QUEUE --exec COMMAND

  --url URL            the URL of the control plane
  --enroll TOKEN       the enroll token, needed once; or in ICHIDO_ENROLL_TOKEN
  --name NAME          the name of this worker; each name has its own identity and state
  --queue QUEUE        a queue to work on; repeat the option for several
  --kind KIND          only jobs of this kind; repeat the option for several
  --concurrency N      how many runs at a time (1)
  --exec COMMAND       the shell command to run for each job, in an empty folder: use absolute paths, or $ICHIDO_AGENT_DIR in
                       single quotes, the folder in which the agent was started; a leading ./ or ../ means that folder, too
  --env NAME[=VALUE]   one more variable for the program, which inherits only a few; repeat the option for several
  --handlers FILE      or a module whose default export is { kind: handler }
  --state DIR          the folder for its token and its runs (~/.local/state/ichido/SERVER-NAME, or in XDG_STATE_HOME);
                       one agent at a time
  --drain TIME         how long runs may continue after SIGTERM, such as 10m (30s)
  --insecure           allow plain HTTP to another machine`

/** A signal to the process group arrives again from npm and from the script that npm runs. */
const SAME_SIGNAL_MS = 1_000
const DRAIN_SECONDS = 30

/** Runs the agent as a program. */
export async function runAgent(file: string): Promise<void> {
  const say = (line: string) => void process.stderr.write(`ichido-agent: ${forTerminal(line)}\n`)
  try {
    const options = readCommandLine(process.argv.slice(2), process.env)
    if (options === null) {
      process.stdout.write(`${USAGE}\n`)
      return
    }
    const why = await untilStopped(() => startAgent(options, { file, say }), say)
    if (why === null) return
    say(why)
    process.exitCode = 1
  } catch (error) {
    if (!isExpected(error)) throw error
    say(error.message)
    process.exitCode = error instanceof BadOptions ? 2 : 1
  }
}

/** The first SIGTERM or Ctrl-C drains the agent, the second one stops its runs. Before the agent has started, both end it. */
export async function untilStopped(
  start: () => Promise<RunningAgent>,
  say: (line: string) => void,
): Promise<string | null> {
  let agent: RunningAgent | null = null
  let firstMs: number | null = null
  const stop = () => {
    if (agent === null) {
      say('stopped')
      process.exit(0)
    }
    const nowMs = nodeWorld.monotonic()
    if (firstMs !== null && nowMs - firstMs < SAME_SIGNAL_MS) return
    if (firstMs === null && agent.running() > 0)
      say('takes no more work and waits for its runs; press Ctrl-C again to stop them')
    firstMs ??= nowMs
    agent.stop()
  }
  // Set before the start, because the agent may hold leases before `start` resolves.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, stop)
  agent = await start()
  const why = await agent.ended
  if (why === null) say('stopped')
  return why
}

/** Reads the agent's command line; null if it asks for help. */
export function readCommandLine(args: readonly string[], env: NodeJS.ProcessEnv): AgentOptions | null {
  const { values } = parse(args)
  if (values.help) return null
  const token = values.enroll ?? env.ICHIDO_ENROLL_TOKEN
  return {
    url: given(values.url, '--url'),
    enroll: token === undefined ? null : { token },
    name: values.name ?? null,
    queues: values.queue ?? [],
    kinds: values.kind ?? [],
    concurrency: wholeNumber(values.concurrency ?? '1', '--concurrency'),
    work: workOf(values),
    env: addedEnv(values.env ?? [], env),
    stateDir: values.state ?? null,
    drainMs: timeMs(values.drain ?? String(DRAIN_SECONDS), '--drain'),
    insecure: values.insecure ?? false,
  }
}

function parse(args: readonly string[]) {
  const text = { type: 'string' } as const
  const texts = { type: 'string', multiple: true } as const
  const flag = { type: 'boolean' } as const
  try {
    return parseArgs({
      args: [...args],
      options: {
        url: text,
        enroll: text,
        name: text,
        queue: texts,
        kind: texts,
        concurrency: text,
        exec: text,
        handlers: text,
        env: texts,
        state: text,
        drain: text,
        insecure: flag,
        help: flag,
      },
    })
  } catch (error) {
    throw new BadOptions(error instanceof Error ? error.message : String(error))
  }
}

export function workOf({ exec, handlers }: { exec?: string; handlers?: string }): AgentOptions['work'] {
  if (exec !== undefined && handlers !== undefined) {
    throw new BadOptions('--exec and --handlers exclude each other: a worker runs a program or a module, not both')
  }
  if (exec !== undefined) return { exec }
  if (handlers !== undefined) return { handlers }
  throw new BadOptions('Set --exec COMMAND or --handlers FILE, which run the jobs')
}

function given(value: string | undefined, name: string): string {
  if (value === undefined) throw new BadOptions(`${name} is missing`)
  return value
}

const MS_OF: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }
/** A hundred years, as for the other command line. */
const TIME_MAX_MS = 36_500 * 86_400_000

/** Reads `30s`, `10m`, `2h`, `7d` and `500ms`; a plain number is in seconds. */
function timeMs(value: string, name: string): number {
  const [, digits, unit = 's'] = /^(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)?$/.exec(value) ?? []
  const ms = Math.round(Number(digits) * (MS_OF[unit] ?? 1))
  if (!(ms <= TIME_MAX_MS)) throw new BadOptions(`${name} must be a time like 30s, 10m, 2h or 7d, and at most 36500d`)
  return ms
}

function wholeNumber(value: string, name: string): number {
  if (!/^\d{1,6}$/.test(value)) throw new BadOptions(`${name} must be a whole number`)
  return Number(value)
}
