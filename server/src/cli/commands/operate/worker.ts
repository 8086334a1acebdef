import { hostname } from 'node:os'
import type { EnrollTokenShape } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect } from '../../connection/connect.ts'
import { warnOfFolder } from '../../connection/exec-warning.ts'
import { processEnv } from '../../connection/process-env.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { say } from '../../output/terminal.ts'
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

const DRAIN_SECONDS = 30

export function addWorker(program: Command): void {
  program
    .command('worker')
    .description('work on the jobs of a queue: run a program or a handler for each')
    .requiredOption('-q, --queue <queue>', 'what to work on; several by naming it again', several)
    .option('--kind <kind>', 'only these kinds of jobs; several by naming it again', several)
    .option('--concurrency <n>', 'how many runs at once (default: 1)', wholeNumber)
    .option('--exec <command>', 'the program to run for each job, by the shell')
    .option('--env <name[=value]>', 'one more variable for the program; several by naming it again', several)
    .option('--handlers <file>', 'or a module whose default export is { kind: handler }')
    .option('--enroll <token>', 'an enroll token; without one it is made with ICHIDO_TOKEN')
    .option('--name <name>', 'what people call this worker; each name has its own identity and state')
    .option('--state <folder>', 'where its token and its runs are kept (default: ~/.local/state/ichido/SERVER-NAME)')
    .option('--drain <time>', 'how long runs may go on after SIGTERM (default: 30s)', seconds)
    .option('--insecure', 'plain http to another machine')
    .addHelpText('after', ABOUT)
    .action(work)
}

const ABOUT = `
The program finds the payload on its standard input and in ICHIDO_PAYLOAD_FILE, writes its result as JSON to
ICHIDO_RESULT_FILE, what it has cost as a number to ICHIDO_COST_FILE, progress as lines of JSON to file descriptor 3,
and files to outputs/. Exit code 0 is success.

It runs in an empty folder of its own: use absolute paths, or in single quotes $ICHIDO_AGENT_DIR, which is where this
worker was started; a leading ./ or ../ of the command means that folder too. A second worker on the same machine needs another --name.`

async function work(flags: WorkerFlags): Promise<void> {
  const { url, ask } = connect()
  warnOfFolder(flags.exec)
  const { AGENT_FILE, addedEnv, isExpected, startAgent, untilStopped, workOf } = await import('@ichido/sdk/agent')
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
    if (!isExpected(error) || error.name === 'IchidoError') throw error
    const exitCode = error.name === 'BadOptions' ? EXIT.usage : EXIT.failed
    throw new Failure(error.message, undefined, exitCode)
  }
}
