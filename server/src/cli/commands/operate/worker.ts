import { hostname } from 'node:os'
import { type EnrollTokenShape, IchidoError } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, processEnv } from '../../connection/connect.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { paint, say } from '../../output/terminal.ts'
import { seconds, several, wholeNumber } from '../../values.ts'

interface WorkerFlags {
  queue: string[]
  kind?: string[]
  concurrency?: number
  exec?: string
  env?: string[]
  handlers?: string
  enroll?: string
  name?: string
  state?: string
  drain?: number
  insecure?: boolean
}

/** A relative path that is not at the beginning of the command, and not after a `cd`. */
const RELATIVE_PATH = /^(?:(?!\bcd\s).)*?\s["']?(?<path>\.\.?\/[^\s"';&|]*)/s
const DRAIN_SECONDS = 30

export function addWorker(program: Command): void {
  program
    .command('worker')
    .description('work on the jobs of a queue: run a program or a handler for each')
    .requiredOption('-q, --queue <queue>', 'a queue to work on; repeat the option for several', several)
    .option('--kind <kind>', 'only jobs of this kind; repeat the option for several', several)
    .option('--concurrency <n>', 'how many runs at a time (default: 1)', wholeNumber)
    .option('--exec <command>', 'the shell command to run for each job')
    .option('--env <name[=value]>', 'one more variable for the program; repeat the option for several', several)
    .option('--handlers <file>', 'or a module whose default export is { kind: handler }')
    .option('--enroll <token>', 'an enroll token (default: one is made with ICHIDO_TOKEN)')
    .option('--name <name>', 'the name of this worker; each name has its own identity and state')
    .option('--state <folder>', 'the folder for its token and its runs (default: ~/.local/state/ichido/SERVER-NAME)')
    .option('--drain <time>', 'how long runs may continue after SIGTERM (default: 30s)', seconds)
    .option('--insecure', 'allow plain HTTP to another machine')
    .addHelpText('after', ABOUT)
    .action(work)
}

const ABOUT = `
The program reads the payload from standard input or ICHIDO_PAYLOAD_FILE. It writes its result as JSON to ICHIDO_RESULT_FILE,
its cost as a number to ICHIDO_COST_FILE, progress as lines of JSON to file descriptor 3, and files to outputs/. Exit code
0 is success.

The program runs in an empty folder: use absolute paths, or $ICHIDO_AGENT_DIR in single quotes, the folder in which this
worker was started. A leading ./ or ../ of the command means that folder, too. A second worker on the same machine needs another --name.`

async function work(flags: WorkerFlags): Promise<void> {
  const { url, ask } = connect()
  warnOfFolder(flags.exec)
  const { AGENT_FILE, addedEnv, BadOptions, isExpected, startAgent, untilStopped, workOf } = await import(
    '@ichido/sdk/agent'
  )
  const { queue: queues, kind: kinds = [], name = null, enroll } = flags
  const make = async () => {
    const body = { queues, label: name ?? hostname() }
    return (await ask<EnrollTokenShape>('POST', '/v1/workers/enroll-tokens', body)).enroll_token
  }
  try {
    const options = {
      url,
      enroll: enroll === undefined ? { make } : { token: enroll },
      name,
      queues,
      kinds,
      concurrency: flags.concurrency ?? 1,
      work: workOf(flags),
      env: addedEnv(flags.env ?? [], processEnv.env),
      stateDir: flags.state ?? null,
      drainMs: (flags.drain ?? DRAIN_SECONDS) * 1000,
      insecure: flags.insecure ?? false,
    }
    const why = await untilStopped(() => startAgent(options, { file: AGENT_FILE, say }), say)
    if (why !== null) throw new Failure(why)
  } catch (error) {
    if (!isExpected(error) || error instanceof IchidoError) throw error
    const exitCode = error instanceof BadOptions ? EXIT.usage : EXIT.failed
    throw new Failure(error.message, undefined, exitCode)
  }
}

/** Warns of a relative path, because programs run in an empty folder. */
export function warnOfFolder(exec: string | undefined): void {
  const path = RELATIVE_PATH.exec(exec ?? '')?.groups?.path
  if (path === undefined) return
  say(
    `${paint('yellow', 'warning:')} programs run in an empty folder, which has no ${path}. Use "$ICHIDO_AGENT_DIR", in single quotes, for`,
  )
  say(`the folder in which the worker is started; a ./ means that folder only at the beginning of the command.`)
}
