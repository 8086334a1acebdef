import type { AlertShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { type ListFlags, paged } from '../../flags.ts'
import { instant, printPage } from '../../output/print.ts'

interface AlertListFlags extends ListFlags {
  open?: boolean
  rule?: string
}

export function addAlerts(program: Command): void {
  const listed = program
    .command('alerts')
    .description('list detected problems')
    .command('list', { isDefault: true })
    .description('list alerts, newest first')
    .option('--open', 'only open alerts')
    .option('--rule <rule>', 'only alerts of this rule, such as dead_letters')
  paged(listed).action(list)
}

async function list({ open = false, json, ...filter }: AlertListFlags): Promise<void> {
  const page = await connect().ask<Page<AlertShape>>('GET', `/v1/alerts${query({ ...filter, all: !open })}`)
  printPage(page, json, open ? 'No alert is open.' : 'No alerts.', {
    RULE: (alert) => alert.rule,
    SUBJECT: (alert) => alert.subject,
    OPENED: (alert) => instant(alert.opened_at),
    CLOSED: (alert) => (alert.closed_at === null ? 'open' : instant(alert.closed_at)),
    MESSAGE: (alert) => alert.message,
  })
}
