import { JOB_STATES, type JobState } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect } from '../../connection/connect.ts'
import type { JsonFlag } from '../../flags.ts'
import { printFacts } from '../../output/print.ts'

export function addStats(program: Command): void {
  program.command('stats').description('count jobs by state').option('--json', 'print JSON').action(print)
}

async function print({ json }: JsonFlag): Promise<void> {
  const counts = await connect().ask<Record<JobState, number>>('GET', '/v1/stats')
  printFacts(
    counts,
    json,
    JOB_STATES.map((state) => [state, String(counts[state])]),
  )
}
