import type { AlertShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { instant, table } from '../../output/table.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { wholeNumber } from '../../values.ts'
import { sayMore } from '../jobs/jobs.ts'

interface ListFlags {
  open?: boolean
  rule?: string
  limit?: number
  cursor?: string
  json?: boolean
}

export function addAlerts(program: Command): void {
  program
    .command('alerts')
    .description('list detected problems')
    .command('list', { isDefault: true })
    .description('list alerts, newest first')
    .option('--open', 'only open alerts')
    .option('--rule <rule>', 'only alerts of this rule, such as dead_letters')
    .option('--limit <n>', 'at most this many (default: 50)', wholeNumber)
    .option('--cursor <cursor>', 'continue where the last list ended')
    .option('--json', 'print JSON')
    .action(list)
}

async function list({ open = false, json, ...filter }: ListFlags): Promise<void> {
  const page = await connect().ask<Page<AlertShape>>('GET', `/v1/alerts${query({ ...filter, all: !open })}`)
  if (json) return outJson(page)
  if (page.data.length === 0) return say(open ? 'No alert is open.' : 'No alerts.')
  out(
    table(
      ['RULE', 'SUBJECT', 'OPENED', 'CLOSED', 'MESSAGE'],
      page.data.map((alert) => [
        alert.rule,
        alert.subject,
        instant(alert.opened_at),
        alert.closed_at === null ? 'open' : instant(alert.closed_at),
        alert.message,
      ]),
    ),
  )
  sayMore(page.next_cursor)
}
