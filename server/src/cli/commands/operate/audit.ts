import type { AuditShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect, query } from '../../connection/connect.ts'
import { type ListFlags, paged } from '../../flags.ts'
import { instant, oneLine, printPage } from '../../output/print.ts'
import { pastOf } from '../../values.ts'

interface AuditFlags extends ListFlags {
  actor?: string
  action?: string
  subject?: string
  from?: string
  to?: string
}

export function addAudit(program: Command): void {
  const listed = program
    .command('audit')
    .description('list who changed what')
    .command('list', { isDefault: true })
    .description('list changes, newest first')
    .option('--actor <user>', 'only changes by this user')
    .option('--action <action>', 'only changes of this sort, such as job.cancel')
    .option('--subject <name>', 'only changes of the thing with this id or name')
    .option('--from <when>', 'made at this instant or later; or how long ago, such as 2h', pastOf)
    .option('--to <when>', 'made before this instant; or how long ago', pastOf)
  paged(listed).action(list)
}

async function list({ json, ...filter }: AuditFlags): Promise<void> {
  const page = await connect().ask<Page<AuditShape>>('GET', `/v1/audit${query({ ...filter })}`)
  printPage(page, json, 'No changes.', {
    TIME: (entry) => instant(entry.created_at),
    ACTOR: (entry) => entry.actor,
    ACTION: (entry) => entry.action,
    SUBJECT: (entry) => entry.subject,
    CHANGE: changeText,
  })
}

/** The new state of the thing, or the old one of a thing that is gone. */
function changeText({ before, after }: AuditShape): string {
  if (after !== null) return oneLine(JSON.stringify(after))
  return before === null ? '-' : oneLine(`was ${JSON.stringify(before)}`)
}
