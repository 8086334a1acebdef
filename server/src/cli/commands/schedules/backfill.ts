import type { BackfillShape, Page } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { followProgress } from '../../output/progress.ts'
import { instant, table } from '../../output/table.ts'
import { out, outJson, say } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'
import { instantOf, instantOrNow, NOW, wholeNumber } from '../../values.ts'
import { sayMore } from '../jobs/jobs.ts'

interface BackfillFlags {
  from: string
  to: string
  dryRun?: boolean
  wait: boolean
  json?: boolean
}

interface ListFlags {
  limit?: number
  cursor?: string
  json?: boolean
}

interface JsonFlag {
  json?: boolean
}

interface Counted {
  matched: number
  made_before: number
  skipped: number
  would_make: number
}

export function addBackfill(definitions: Command): void {
  definitions
    .command('backfill <name>')
    .description('make the ticks of a past range that the ledger does not have; Ctrl-C leaves it running')
    .requiredOption('--from <instant>', 'ticks at this instant or later', instantOf)
    .requiredOption('--to <instant>', 'ticks before this instant (default: now)', instantOrNow)
    .option('--dry-run', 'only count, change nothing')
    .option('--no-wait', 'do not wait for the end')
    .option('--json', 'print JSON')
    .action(backfill)
  definitions
    .command('backfills <name>')
    .description('list the backfills of a definition, newest first')
    .option('--limit <n>', 'at most this many (default: 50)', wholeNumber)
    .option('--cursor <cursor>', 'continue where the last list ended')
    .option('--json', 'print JSON')
    .action(list)
  definitions
    .command('progress <name> <backfill-id>')
    .description('show the progress of a backfill until it is done; Ctrl-C leaves it running')
    .option('--json', 'print JSON')
    .action(async (name: string, backfillId: string, { json }: JsonFlag) => {
      finish(await follow(connect(), name, backfillId), json)
    })
  definitions
    .command('abort <name> <backfill-id>')
    .description('abort a backfill; jobs that it has made stay')
    .option('--json', 'print JSON')
    .action(async (name: string, backfillId: string, { json }: JsonFlag) => {
      finish(await connect().ask<BackfillShape>('POST', `${pathOf(name, backfillId)}/abort`), json)
    })
}

function pathOf(name: string, backfillId: string): string {
  return `/v1/definitions/${encodeURIComponent(name)}/backfills/${encodeURIComponent(backfillId)}`
}

async function backfill(name: string, { dryRun, wait, json, ...range }: BackfillFlags): Promise<void> {
  const from = range.from
  const to = range.to === NOW ? undefined : range.to
  const connection = connect()
  const path = `/v1/definitions/${encodeURIComponent(name)}/backfill`
  if (dryRun) {
    const counted = await connection.ask<Counted>('POST', path, { from, to, dry_run: true })
    if (json) outJson(counted)
    else say(`${counted.would_make} of ${counted.matched} ticks would be made${found(counted)}.`)
    return
  }
  const begun = await connection.ask<BackfillShape>('POST', path, { from, to })
  if (wait) return finish(await follow(connection, name, begun.backfill_id), json)
  if (json) return outJson(begun)
  out(begun.backfill_id)
  say(`See it with ${commandLine(`definitions progress ${name} ${begun.backfill_id}`)}`)
}

function follow(connection: Connection, name: string, backfillId: string): Promise<BackfillShape> {
  const line = (verb: string) => `  ${commandLine(`definitions ${verb} ${name} ${backfillId}`)}`
  return followProgress({
    look: () => connection.ask<BackfillShape>('GET', pathOf(name, backfillId)),
    hasEnded: ({ state }) => state !== 'running',
    tell,
    goesOn: {
      message: `Backfill ${backfillId} continues without this command.`,
      advice: ['See it with', line('progress'), 'or end it with', line('abort')].join('\n'),
    },
  })
}

function tell(backfill: BackfillShape): string {
  return `${backfill.made} of ${backfill.matched} ticks made${found(backfill)}`
}

/** What it leaves alone. */
function found({ made_before, skipped }: Pick<BackfillShape, 'made_before' | 'skipped'>): string {
  const made = made_before > 0 ? `, ${made_before} made before` : ''
  return skipped > 0 ? `${made}, ${skipped} skipped (a backfill does not make these)` : made
}

function finish(backfill: BackfillShape, json: boolean | undefined): void {
  if (json) outJson(backfill)
  else say(`Backfill ${backfill.backfill_id} is ${backfill.state}: ${tell(backfill)}`)
}

async function list(name: string, { json, ...place }: ListFlags): Promise<void> {
  const path = `/v1/definitions/${encodeURIComponent(name)}/backfills${query({ ...place })}`
  const page = await connect().ask<Page<BackfillShape>>('GET', path)
  if (json) return outJson(page)
  if (page.data.length === 0) return say('No backfills.')
  out(
    table(
      ['BACKFILL', 'STATE', 'BY', 'FROM', 'TO', 'PROGRESS'],
      page.data.map((one) => [one.backfill_id, one.state, one.actor, instant(one.from), instant(one.to), tell(one)]),
    ),
  )
  sayMore(page.next_cursor)
}
