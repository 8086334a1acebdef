import type { Command } from 'commander'
import { type Connection, connect } from '../../connection/connect.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { follow, showOutcome } from '../../output/follow.ts'
import { say } from '../../output/terminal.ts'
import { startLine } from '../../self.ts'
import { seconds } from '../../values.ts'

/** The local worker of `npm start` serves only this queue, so that it never takes other jobs. */
export const DEMO_QUEUE = 'demo'
export const DEMO_KIND = 'demo.hello'
/** Always fails, to show a failure. */
export const DEMO_FAILING_KIND = 'demo.fail'
const TIMEOUT_SECONDS = 60

interface DemoFlags {
  timeout: number
  json?: boolean
}

export function addDemo(program: Command): void {
  program
    .command('demo')
    .description('submit a job to the local worker and show its result')
    .option('--timeout <time>', 'stop waiting after this long', seconds, TIMEOUT_SECONDS)
    .option('--json', 'print the job with its result as JSON')
    .action(demo)
}

/** The page shows the job in its hash. */
function pageOf({ url }: Connection, jobId: string): string {
  return `${url.replace(/\/+$/, '')}/jobs/${jobId}`
}

async function demo({ timeout, json = false }: DemoFlags): Promise<void> {
  const connection = connect()
  const request = { kind: DEMO_KIND, queue: DEMO_QUEUE, payload: { name: 'world' } }
  const { response } = await connection.transport.submit(request, {})
  say(`Submitted job ${response.job_id} of the kind ${DEMO_KIND} to the queue ${DEMO_QUEUE}`)
  try {
    const job = await follow(connection, response.job_id, { timeoutSeconds: timeout })
    await showOutcome(connection, job, json)
    if (!json) say(`See it in a browser: ${pageOf(connection, response.job_id)}`)
  } catch (error) {
    if (!(error instanceof Failure && error.exitCode === EXIT.timeout)) throw error
    const advice = `Only a server with a local worker runs this job: \`${startLine()}\``
    throw new Failure(error.message, `${advice}\n${error.advice}`, error.exitCode)
  }
}
