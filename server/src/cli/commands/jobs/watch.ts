import type { Command } from 'commander'
import { connect } from '../../connection/connect.ts'
import { follow } from '../../output/follow.ts'
import { showOutcome } from '../../output/outcome.ts'
import { outJson } from '../../output/terminal.ts'
import { seconds } from '../../values.ts'

interface WatchFlags {
  timeout?: number
  json?: boolean
}

export function addWatch(program: Command): void {
  program
    .command('watch <job-id>')
    .description('follow a job until it has ended, and print its result')
    .option('--timeout <time>', 'stop watching after this long, such as 10m', seconds)
    .option('--json', 'print each event, and finally the job, as a line of JSON')
    .action(async (jobId: string, { timeout, json = false }: WatchFlags) => {
      const connection = connect()
      const onEvent = json ? { onEvent: outJson } : {}
      const job = await follow(connection, jobId, { timeoutSeconds: timeout, ...onEvent })
      await showOutcome(connection, job, json)
    })
}
