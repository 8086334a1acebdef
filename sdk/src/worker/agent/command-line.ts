import { parseArgs } from 'node:util'
import type { AgentOptions } from './agent.ts'
import { BadOptions } from './bad-options.ts'
import { addedEnv } from './process/inherited.ts'

export const USAGE = `usage: node agent.mjs --url URL --enroll TOKEN --queue QUEUE --exec COMMAND

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
  --drain SECONDS      how long runs may continue after SIGTERM (30)
  --insecure           allow plain HTTP to another machine`

const DRAIN_SECONDS = 30

/** The agent's own command line; null: it asks for help. */
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
    drainMs: wholeNumber(values.drain ?? String(DRAIN_SECONDS), '--drain') * 1000,
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

function wholeNumber(value: string, name: string): number {
  if (!/^\d{1,6}$/.test(value)) throw new BadOptions(`${name} must be a whole number`)
  return Number(value)
}
